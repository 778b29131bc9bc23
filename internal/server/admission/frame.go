package admission

import "encoding/binary"

// frame is the header of an HTTP/2 frame (RFC 9113, 4.1).
type frame struct {
	length int
	kind   uint8
	flags  uint8
	stream uint32
}

// The frames that a Gate counts (RFC 9113, 6).
const (
	frameData    = 0
	frameHeaders = 1
	frameReset   = 3
)

// endStream reports whether a DATA or HEADERS frame is the last one in its direction.
func (f frame) endStream() bool { return f.flags&1 != 0 }

const frameHeaderSize = 9

// frameScanner finds the frames in one direction of a connection.
type frameScanner struct {
	skip   int // bytes up to the next frame
	header [frameHeaderSize]byte
	filled int // bytes of header
}

// scan calls found for each frame whose header ends in data.
func (s *frameScanner) scan(data []byte, found func(frame)) {
	for {
		if s.skip >= len(data) {
			s.skip -= len(data)
			return
		}
		data, s.skip = data[s.skip:], 0
		n := copy(s.header[s.filled:], data)
		data, s.filled = data[n:], s.filled+n
		if s.filled < frameHeaderSize {
			return
		}
		h := binary.BigEndian.Uint64(s.header[:])
		f := frame{
			length: int(h >> 40),
			kind:   uint8(h >> 32),
			flags:  uint8(h >> 24),
			stream: binary.BigEndian.Uint32(s.header[5:]) &^ (1 << 31),
		}
		s.filled, s.skip = 0, f.length
		found(f)
	}
}

package redis

import (
	"encoding/binary"
	"errors"
	"math"
)

// The arguments and the reply of the script are MessagePack
// (https://github.com/msgpack/msgpack/blob/master/spec.md), of which only
// integers, strings and arrays occur.

// appendArray starts an array of n elements, up to 65,535.
func appendArray(b []byte, n int) []byte {
	return binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(n))
}

func appendInt(b []byte, n int64) []byte {
	switch {
	case n >= 0 && n < 1<<7:
		return append(b, byte(n))
	case n >= 0 && n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(n))
	default:
		return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(n))
	}
}

var errReply = errors.New("the script's reply can't be read")

// reader reads MessagePack. Once something can't be read, failed is set and all
// that follows is zero.
type reader struct {
	rest   string
	failed bool
}

func (r *reader) bytes(n int) string {
	if n > len(r.rest) {
		r.failed, r.rest = true, ""
		return ""
	}
	s := r.rest[:n]
	r.rest = r.rest[n:]
	return s
}

func (r *reader) uint(n int) (v uint64) {
	for _, c := range []byte(r.bytes(n)) {
		v = v<<8 | uint64(c)
	}
	return v
}

// array is the number of elements of the array that starts here.
func (r *reader) array() int {
	switch c := r.uint(1); {
	case c&0xf0 == 0x90:
		return int(c & 0xf)
	case c == 0xdc:
		return int(r.uint(2))
	case c == 0xdd:
		return int(r.uint(4))
	}
	r.failed = true
	return 0
}

func (r *reader) int() int64 {
	switch c := r.uint(1); {
	case c < 0x80:
		return int64(c)
	case c >= 0xe0:
		return int64(int8(c))
	case c >= 0xcc && c <= 0xcf:
		return int64(r.uint(1 << (c - 0xcc)))
	case c >= 0xd0 && c <= 0xd3:
		size := 1 << (c - 0xd0)
		unused := 64 - 8*size
		return int64(r.uint(size)) << unused >> unused
	}
	r.failed = true
	return 0
}

func (r *reader) string() string {
	switch c := r.uint(1); {
	case c&0xe0 == 0xa0:
		return r.bytes(int(c & 0x1f))
	case c >= 0xd9 && c <= 0xdb:
		return r.bytes(int(r.uint(1 << (c - 0xd9))))
	}
	r.failed = true
	return ""
}

// Package msgpack reads and writes MessagePack with integers, strings and arrays only. The
// format is https://github.com/msgpack/msgpack/blob/master/spec.md.
package msgpack

import (
	"encoding/binary"
	"math"
)

// AppendArray appends the head of an array of n elements, up to 65,535.
func AppendArray(b []byte, n int) []byte {
	return binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(n))
}

// AppendInt appends an integer.
func AppendInt(b []byte, n int64) []byte {
	switch {
	case n >= 0 && n < 1<<7:
		return append(b, byte(n))
	case n >= 0 && n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(n))
	default:
		return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(n))
	}
}

// AppendString appends a string of up to 31 bytes.
func AppendString(b []byte, s string) []byte {
	return append(append(b, 0xa0|byte(len(s))), s...)
}

// Reader reads the values in Rest. After a value that a method can't read, Failed is set and
// all further values are zero.
type Reader struct {
	Rest   string
	Failed bool
}

// Array reads the head of an array and returns its number of elements.
func (r *Reader) Array() int {
	switch c := r.uint(1); {
	case c&0xf0 == 0x90:
		return int(c & 0xf)
	case c == 0xdc:
		return int(r.uint(2))
	case c == 0xdd:
		return int(r.uint(4))
	}
	r.fail()
	return 0
}

// Int reads an integer.
func (r *Reader) Int() int64 {
	switch c := r.uint(1); {
	case r.Failed:
		return 0
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
	r.fail()
	return 0
}

// String reads a string.
func (r *Reader) String() string {
	switch c := r.uint(1); {
	case c&0xe0 == 0xa0:
		return r.bytes(int(c & 0x1f))
	case c >= 0xd9 && c <= 0xdb:
		return r.bytes(int(r.uint(1 << (c - 0xd9))))
	}
	r.fail()
	return ""
}

func (r *Reader) fail() { r.Failed, r.Rest = true, "" }

func (r *Reader) bytes(n int) string {
	if n > len(r.Rest) {
		r.fail()
		return ""
	}
	s := r.Rest[:n]
	r.Rest = r.Rest[n:]
	return s
}

func (r *Reader) uint(n int) (v uint64) {
	for _, c := range []byte(r.bytes(n)) {
		v = v<<8 | uint64(c)
	}
	return v
}

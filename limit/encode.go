package limit

import (
	"encoding/binary"
	"errors"
)

// Append appends the encoding of s to b: the numbers a, b and c, and then the entries of the log, oldest entry first. An
// entry is the time since the previous entry, and the number of hits. All numbers are unsigned varints. s must not belong
// to an algorithm with HasHolds.
func (s *State) Append(b []byte) []byte {
	for _, n := range []int64{s.a, s.b, s.c} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	if s.log == nil {
		return b
	}
	var previousTime int64
	for _, e := range s.log.entries[s.log.head:] {
		b = binary.AppendUvarint(b, uint64(e.time-previousTime))
		b = binary.AppendUvarint(b, uint64(e.n))
		previousTime = e.time
	}
	return b
}

var errInvalidState = errors.New("value is not the state of a counter")

// DecodeState returns the State that Append has encoded in b. It returns an error if Append can't have written b.
func DecodeState(b []byte) (State, error) {
	var s State
	for i, field := range []*int64{&s.a, &s.b, &s.c} {
		n, size := binary.Uvarint(b)
		if canBeTime := i == 0; size <= 0 || int64(n) < 0 || !canBeTime && n > MaxHits {
			return State{}, errInvalidState
		}
		*field, b = int64(n), b[size:]
	}
	var lastTime, total int64
	for len(b) > 0 {
		timeSinceLast, size := binary.Uvarint(b)
		n, sizeOfHits := binary.Uvarint(b[max(size, 0):])
		time := lastTime + int64(timeSinceLast)
		if size <= 0 || sizeOfHits <= 0 || time < lastTime || n == 0 || n > MaxHits {
			return State{}, errInvalidState
		}
		if s.log == nil {
			s.log = &Log{entries: make([]hitEntry, 0, len(b)/2+1)} // an encoded entry has at least two bytes
		}
		s.log.entries = append(s.log.entries, hitEntry{time, int64(n)})
		lastTime, total, b = time, total+int64(n), b[size+sizeOfHits:]
	}
	if s.log != nil && total != s.a {
		return State{}, errInvalidState
	}
	return s, nil
}

package limitsplan

import (
	"cmp"
	"errors"
	"io"
	"slices"
	"time"
)

// maxSorted is the number of records that a log may be out of order by.
const maxSorted = 1 << 14

// timed is a record at a time.
type timed[T any] struct {
	time   time.Time
	number int // of its line; orders records of the same time
	value  T
}

func (r timed[T]) compare(other timed[T]) int {
	return cmp.Or(r.time.Compare(other.time), cmp.Compare(r.number, other.number))
}

// sorter returns the records of next in the order of time. Logs are nearly in order: a call
// has the time of its start, and its line is written at its end. So a new record belongs near the
// end of the queue.
type sorter[T any] struct {
	next  func() (timed[T], error)
	queue []timed[T] // in the order of time
	ended bool
}

// pop returns the next record.
func (s *sorter[T]) pop() (value T, err error) {
	for !s.ended && len(s.queue) < maxSorted {
		r, err := s.next()
		if errors.Is(err, io.EOF) {
			s.ended = true
			break
		}
		if err != nil {
			return value, err
		}
		place, _ := slices.BinarySearchFunc(s.queue, r, timed[T].compare)
		s.queue = slices.Insert(s.queue, place, r)
	}
	if len(s.queue) == 0 {
		return value, io.EOF
	}
	value = s.queue[0].value
	s.queue[0] = timed[T]{}
	s.queue = s.queue[1:]
	return value, nil
}

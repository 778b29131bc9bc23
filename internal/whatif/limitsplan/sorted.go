package limitsplan

import (
	"errors"
	"io"
	"slices"
	"sort"
	"time"
)

const maxSorted = 1 << 14 // records by which a log may be out of order

// sorter returns the records of next in the order of time. Logs are nearly in order, because a line is written at the
// end of a call and has the time of its start. So a new record belongs near the end of the queue.
type sorter[T any] struct {
	next   func() (T, error)
	timeOf func(T) time.Time
	queue  []T // in the order of time
	ended  bool
}

func (s *sorter[T]) pop() (first T, err error) {
	for !s.ended && len(s.queue) < maxSorted {
		r, err := s.next()
		if errors.Is(err, io.EOF) {
			s.ended = true
			break
		}
		if err != nil {
			return first, err
		}
		place := sort.Search(len(s.queue), func(i int) bool { return s.timeOf(s.queue[i]).After(s.timeOf(r)) })
		s.queue = slices.Insert(s.queue, place, r)
	}
	if len(s.queue) == 0 {
		return first, io.EOF
	}
	first = s.queue[0]
	clear(s.queue[:1])
	s.queue = s.queue[1:]
	return first, nil
}

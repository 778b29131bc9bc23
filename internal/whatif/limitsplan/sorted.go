package limitsplan

import (
	"errors"
	"io"
	"slices"
	"sort"
	"time"
)

const maxQueueLength = 1 << 14 // the number of later records that can stand before a record in the log

// sorter returns the records of read in the order of time. A line of a log is written at the end of a call, but has the time
// of the start. So a log is nearly in the order of time, and a new record belongs near the end of the queue.
type sorter[T any] struct {
	read    func() (T, error)
	timeOf  func(T) time.Time
	queue   []T // the sorted records
	isAtEnd bool
}

func (s *sorter[T]) pop() (firstRecord T, err error) {
	for !s.isAtEnd && len(s.queue) < maxQueueLength {
		record, err := s.read()
		if errors.Is(err, io.EOF) {
			s.isAtEnd = true
			break
		}
		if err != nil {
			return firstRecord, err
		}
		i := sort.Search(len(s.queue), func(i int) bool { return s.timeOf(s.queue[i]).After(s.timeOf(record)) })
		s.queue = slices.Insert(s.queue, i, record)
	}
	if len(s.queue) == 0 {
		return firstRecord, io.EOF
	}
	firstRecord = s.queue[0]
	clear(s.queue[:1])
	s.queue = s.queue[1:]
	return firstRecord, nil
}

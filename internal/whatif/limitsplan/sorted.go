package limitsplan

import (
	"container/heap"
	"errors"
	"io"
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

// sorter returns the records of next in the order of time. Logs are nearly in order: a call
// has the time of its start, and its line is written at its end.
type sorter[T any] struct {
	next  func() (timed[T], error)
	queue timedHeap[T]
	ended bool
}

// pop returns the next record.
func (s *sorter[T]) pop() (timed[T], error) {
	for !s.ended && len(s.queue) < maxSorted {
		r, err := s.next()
		if errors.Is(err, io.EOF) {
			s.ended = true
			break
		}
		if err != nil {
			return r, err
		}
		heap.Push(&s.queue, r)
	}
	if len(s.queue) == 0 {
		return timed[T]{}, io.EOF
	}
	return heap.Pop(&s.queue).(timed[T]), nil
}

// timedHeap implements heap.Interface.
type timedHeap[T any] []timed[T]

func (h timedHeap[T]) Len() int { return len(h) }

func (h timedHeap[T]) Less(i, j int) bool {
	if h[i].time.Equal(h[j].time) {
		return h[i].number < h[j].number
	}
	return h[i].time.Before(h[j].time)
}

func (h timedHeap[T]) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h *timedHeap[T]) Push(r any) { *h = append(*h, r.(timed[T])) }

func (h *timedHeap[T]) Pop() any {
	last := len(*h) - 1
	r := (*h)[last]
	(*h)[last] = timed[T]{}
	*h = (*h)[:last]
	return r
}

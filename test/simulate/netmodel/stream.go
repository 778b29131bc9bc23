package netmodel

import (
	"io"
	"os"
	"slices"
	"sync"
	"time"
)

// stream carries bytes in one direction. Bytes arrive in order, after the delay of the link.
type stream struct {
	link   *Link
	isHeld func() bool

	mu       sync.Mutex    // guards the fields below
	changed  chan struct{} // closed and replaced at each change
	chunks   []chunk
	arrived  time.Time // time of arrival of the last bytes that were read
	err      error     // of reads after the last chunk
	deadline time.Time
}

// chunk is the bytes of one write.
type chunk struct {
	data    []byte
	arrives time.Time
}

func newStream(l *Link, isHeld func() bool) *stream {
	return &stream{link: l, isHeld: isHeld, changed: make(chan struct{})}
}

// signal wakes all readers. The caller holds s.mu.
func (s *stream) signal() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// write sends data at a time, which may be a little in the past.
func (s *stream) write(data []byte, at time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return errReset
	}
	arrives := at.Add(s.link.delay())
	if n := len(s.chunks); n > 0 && s.chunks[n-1].arrives.After(arrives) {
		arrives = s.chunks[n-1].arrives
	}
	s.chunks = append(s.chunks, chunk{append([]byte(nil), data...), arrives})
	s.signal()
	return nil
}

// end makes reads fail with err after the chunks that have been written.
func (s *stream) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
		s.signal()
	}
}

// reset makes all reads fail with err. It loses the chunks that have not been read.
func (s *stream) reset(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.chunks, s.err = nil, err
	s.signal()
}

func (s *stream) setDeadline(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline = t
	s.signal()
}

// read reads bytes that have arrived. It waits for them until the deadline.
func (s *stream) read(b []byte) (int, error) {
	for {
		n, wake, changed, err := s.tryRead(b)
		if n > 0 || err != nil {
			return n, err
		}
		timer := time.NewTimer(wake)
		select {
		case <-timer.C:
		case <-changed:
		case <-s.link.changes():
		}
		timer.Stop()
	}
}

// forever is the wait for bytes without a known time of arrival.
const forever = 1000 * time.Hour

// tryRead reads bytes that have arrived. Otherwise it returns how long to wait at most for the
// next attempt, and a channel that is closed at the next change.
func (s *stream) tryRead(b []byte) (n int, wait time.Duration, changed chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, wait := time.Now(), forever
	switch {
	case s.err != nil && s.err != io.EOF: //nolint:errorlint // it is never wrapped
		return 0, 0, nil, s.err
	case !s.deadline.IsZero() && !now.Before(s.deadline):
		return 0, 0, nil, os.ErrDeadlineExceeded
	case !s.deadline.IsZero():
		wait = s.deadline.Sub(now)
	}
	switch {
	case s.isHeld():
	case len(s.chunks) == 0 && s.err != nil:
		return 0, 0, nil, s.err
	case len(s.chunks) > 0:
		first := &s.chunks[0]
		if untilArrival := first.arrives.Sub(now); untilArrival > 0 {
			return 0, min(wait, untilArrival), s.changed, nil
		}
		n = copy(b, first.data)
		s.arrived = slices.MaxFunc([]time.Time{first.arrives, s.link.lastHeal()}, time.Time.Compare)
		if first.data = first.data[n:]; len(first.data) == 0 {
			s.chunks = s.chunks[1:]
		}
	}
	return n, wait, s.changed, nil
}

// arrivalTime returns when the last bytes that were read have arrived.
func (s *stream) arrivalTime() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.arrived
}

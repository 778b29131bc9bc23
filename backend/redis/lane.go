package redis

import (
	"context"
	"fmt"
	"sync"

	"github.com/seed-81f232ab/rls/backend"
)

// maxCall bounds the hits of a call, and so the keys of a script: Lua can hand
// about 8000 values to a function.
const maxCall = 4096

var (
	errFull    = fmt.Errorf("redis: too many hits are waiting: %w: %w", backend.ErrOverloaded, backend.ErrUnavailable)
	errClosed  = fmt.Errorf("redis: closed: %w", backend.ErrUnavailable)
	errTooMany = fmt.Errorf("redis: more than %d hits at once: %w: %w", maxCall, backend.ErrOverloaded, backend.ErrUnavailable)
)

// lane is the queue of one partition, and the workers that carry what waits in it
// to Redis, as much as there is at a time. So an idle lane sends at once, and a
// busy one sends more with each trip.
type lane struct {
	limiter *Limiter
	pool    *pool
	wake    chan struct{} // a token for each idle worker that is to look

	mu          sync.Mutex // guards what follows
	first, last *call
	hits        int // of all that wait
	idle        int // workers that wait and aren't woken
	closed      bool
}

func newLane(ctx context.Context, l *Limiter, p *pool) *lane {
	q := &lane{limiter: l, pool: p, wake: make(chan struct{}, l.options.Trips)}
	for range l.options.Trips {
		l.workers.Go(func() { q.work(ctx) })
	}
	return q
}

// push gives a call to the workers, who answer and release it, unless there is an
// error.
func (q *lane) push(c *call) error {
	if len(c.hits) > maxCall {
		return errTooMany
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return errClosed
	case q.hits > 0 && q.hits+len(c.hits) > q.limiter.options.MaxQueue:
		return errFull
	}
	if q.first == nil {
		q.first = c
	} else {
		q.last.next = c
	}
	q.last = c
	q.hits += len(c.hits)
	if q.idle > 0 {
		q.idle--
		q.wake <- struct{}{}
	}
	return nil
}

// pop waits for calls and appends as many as fit in a trip; none means the end.
func (q *lane) pop(calls []*call) []*call {
	q.mu.Lock()
	for q.first == nil {
		if q.closed {
			q.mu.Unlock()
			return calls
		}
		q.idle++
		q.mu.Unlock()
		<-q.wake
		q.mu.Lock()
	}
	defer q.mu.Unlock()
	for n := 0; q.first != nil; {
		c := q.first
		if n += len(c.hits); n > q.limiter.options.MaxHits && len(calls) > 0 {
			break
		}
		q.first, c.next = c.next, nil
		q.hits -= len(c.hits)
		calls = append(calls, c)
	}
	return calls
}

func (q *lane) work(ctx context.Context) {
	t := newTrip(q.pool, q.limiter)
	var calls []*call
	for {
		clear(calls)
		calls = q.pop(calls[:0])
		if len(calls) == 0 {
			return
		}
		t.carry(ctx, calls)
	}
}

// close ends the workers once the queue is empty.
func (q *lane) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.wake)
	}
}

package redis

import (
	"context"
	"fmt"
	"sync"

	"github.com/seed-81f232ab/rls/backend"
)

// maxCallHits bounds the hits of a call, and so the keys of a script. Lua can pass about
// 8,000 values to a function.
const maxCallHits = 4096

// Errors of hits that were never sent.
var (
	errFull    = fmt.Errorf("redis: too many hits are waiting: %w: %w", backend.ErrOverloaded, backend.ErrUnavailable)
	errTooMany = fmt.Errorf("redis: more than %d hits at once: %w: %w", maxCallHits, backend.ErrOverloaded, backend.ErrUnavailable)
	errExpired = fmt.Errorf("redis: time was up before the hits were sent: %w: %w", backend.ErrOverloaded, backend.ErrUnavailable)
	errClosed  = fmt.Errorf("redis: closed: %w", backend.ErrUnavailable)
)

// queue holds the calls of one partition until a worker sends them. A worker takes as
// many calls as fit in a batch, so an idle queue sends at once and a busy queue sends
// larger batches.
type queue struct {
	limiter *Limiter
	pool    *pool
	wake    chan struct{} // a token for each idle worker that has work

	mu          sync.Mutex // guards the fields below
	first, last *call
	hits        int // of all waiting calls
	idle        int // workers that wait for a token and have none
	closed      bool
}

func newQueue(ctx context.Context, l *Limiter, p *pool) *queue {
	q := &queue{limiter: l, pool: p, wake: make(chan struct{}, l.options.MaxInflightBatches)}
	for range l.options.MaxInflightBatches {
		l.workers.Go(func() { q.work(ctx) })
	}
	return q
}

// push hands a call to the workers, who answer and release it. After an error the call
// still belongs to the caller.
func (q *queue) push(c *call) error {
	if len(c.hits) > maxCallHits {
		return errTooMany
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return errClosed
	case q.hits > 0 && q.hits+len(c.hits) > q.limiter.options.MaxQueueSize:
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

// pop waits for calls and appends as many to calls as fit in a batch. It also returns the
// number of hits that still wait. No calls means that the queue is closed and empty.
func (q *queue) pop(calls []*call) (batch []*call, queued int) {
	q.mu.Lock()
	for q.first == nil {
		if q.closed {
			q.mu.Unlock()
			return calls, 0
		}
		q.idle++
		q.mu.Unlock()
		<-q.wake
		q.mu.Lock()
	}
	defer q.mu.Unlock()
	for n := 0; q.first != nil; {
		c := q.first
		if n += len(c.hits); n > q.limiter.options.MaxBatchSize && len(calls) > 0 {
			break
		}
		q.first, c.next = c.next, nil
		q.hits -= len(c.hits)
		calls = append(calls, c)
	}
	return calls, q.hits
}

func (q *queue) work(ctx context.Context) {
	b := newBatch(q.pool, q.limiter)
	var calls []*call
	for {
		clear(calls)
		calls, b.queued = q.pop(calls[:0])
		if len(calls) == 0 {
			return
		}
		b.run(ctx, calls)
	}
}

// close ends the workers once the queue is empty.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.wake)
	}
}

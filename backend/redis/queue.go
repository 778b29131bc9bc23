package redis

import (
	"context"
	"fmt"
	"slices"
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
	limiter  *Limiter
	pool     *pool
	keyspace keyspace
	expiries *expiryTable
	doubtful doubtfulKeys

	mu      sync.Mutex // guards the fields below
	changed sync.Cond  // signals a call or the close to workers
	calls   []*call
	hits    int // of calls
	closed  bool
}

// startQueue returns a queue with its workers.
func (l *Limiter) startQueue(ctx context.Context, p *pool, k keyspace) *queue {
	q := &queue{limiter: l, pool: p, keyspace: k, expiries: newExpiryTable(maxKnownKeys / p.partitions)}
	q.changed.L = &q.mu
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
	q.calls = append(q.calls, c)
	q.hits += len(c.hits)
	q.changed.Signal()
	return nil
}

// pop waits until calls are in the queue. It moves the calls that fit in one batch to
// batch, and returns batch and the number of hits that still wait. The returned batch is
// empty if the queue is closed and empty.
func (q *queue) pop(batch []*call) (_ []*call, queued int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.calls) == 0 && !q.closed {
		q.changed.Wait()
	}
	n, hits := 0, 0
	for _, c := range q.calls {
		if hits += len(c.hits); hits > q.limiter.options.MaxBatchSize && n > 0 {
			break
		}
		q.hits -= len(c.hits)
		n++
	}
	batch = append(batch, q.calls[:n]...)
	q.calls = slices.Delete(q.calls, 0, n)
	return batch, q.hits
}

func (q *queue) work(ctx context.Context) {
	b := &batch{queue: q}
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
	q.closed = true
	q.changed.Broadcast()
}

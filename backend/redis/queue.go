package redis

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/seed-81f232ab/rls/backend"
)

// maxCallHits bounds the hits of a call, and so the keys of a script. Lua can pass about
// 8,000 values to a function.
const maxCallHits = 4096

// Errors of hits that were never sent.
var (
	errOverloaded = fmt.Errorf("%w: %w: %w", backend.ErrOverloaded, backend.ErrNotSent, backend.ErrUnavailable)
	errFull       = fmt.Errorf("redis: too many hits are waiting: %w", errOverloaded)
	errTooMany    = fmt.Errorf("redis: more than %d hits at once: %w", maxCallHits, errOverloaded)
	errExpired    = fmt.Errorf("redis: time was up before the hits were sent: %w", errOverloaded)
	errStalled    = fmt.Errorf("redis: hits before these hits have %w: %w: %w", backend.ErrLate, backend.ErrNotSent, backend.ErrUnavailable)
	errClosed     = fmt.Errorf("redis: closed: %w", backend.ErrUnavailable)
)

// queue has the calls of one partition until a worker sends them. A worker takes as many calls as
// fit in a batch. So a call in an idle queue does not wait, and a busy queue has larger batches.
type queue struct {
	limiter  *Limiter
	pool     *pool
	keyspace keyspace
	expiries *expiryTable
	doubtful doubtfulKeys
	pace     pace
	counts   lastCounts

	mu           sync.Mutex // guards the fields below
	callsChanged sync.Cond  // signals a call or the close to workers
	smallCalls   []*call    // calls of at most smallCallHits
	largeCalls   []*call    // the other calls
	hits         int        // of all calls
	closed       bool

	// isLargeFirst makes large calls go first in the next batch. Batches alternate, so a call
	// with many hits delays the others by one batch at most.
	isLargeFirst bool
}

// smallCallHits is the most hits of a small call. Nearly all calls of Envoy are small.
const smallCallHits = 16

// startQueue returns a queue with its workers.
func (l *Limiter) startQueue(ctx context.Context, p *pool, k keyspace) *queue {
	q := &queue{limiter: l, pool: p, keyspace: k, expiries: newExpiryTable(maxKnownKeys / p.partitions)}
	q.counts.buckets = newLastCounts(maxLastCounts / p.partitions)
	q.callsChanged.L = &q.mu
	for range p.inflightBatches {
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
	if len(c.hits) <= smallCallHits {
		q.smallCalls = append(q.smallCalls, c)
	} else {
		q.largeCalls = append(q.largeCalls, c)
	}
	q.hits += len(c.hits)
	q.callsChanged.Signal()
	return nil
}

// pop waits for calls. It moves the calls that fit in one batch to batch. It returns batch and queued,
// the number of hits that stay in the queue. The returned batch is empty if the queue is closed and
// empty.
func (q *queue) pop(batch []*call) (_ []*call, queued int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.awaitCalls()
	q.yield()
	q.awaitCalls() // another worker may have taken the calls
	firstList, secondList := &q.smallCalls, &q.largeCalls
	if q.isLargeFirst {
		firstList, secondList = secondList, firstList
	}
	q.isLargeFirst = !q.isLargeFirst && len(q.largeCalls) > 0
	hitsBefore := q.hits
	batch = q.move(batch, firstList, hitsBefore)
	batch = q.move(batch, secondList, hitsBefore)
	return batch, q.hits
}

// awaitCalls waits until the queue has calls or is closed. The caller holds q.mu.
func (q *queue) awaitCalls() {
	for q.hits == 0 && !q.closed {
		q.callsChanged.Wait()
	}
}

// move moves calls from the front of list to batch. It stops before MaxBatchSize is exceeded,
// unless the batch would be empty. hitsBefore is the number of hits in the queue before the batch.
// The caller holds q.mu.
func (q *queue) move(batch []*call, list *[]*call, hitsBefore int) []*call {
	n := 0
	for _, c := range *list {
		if hitsBefore-q.hits+len(c.hits) > q.limiter.options.MaxBatchSize && len(batch) > 0 {
			break
		}
		q.hits -= len(c.hits)
		batch = append(batch, c)
		n++
	}
	*list = slices.Delete(*list, 0, n)
	return batch
}

// yieldCount is the number of yields of a worker before it takes a batch.
const yieldCount = 2

// yield lets other goroutines run, so they can push their calls before the worker takes a batch. In a
// busy process the batch becomes twice as large. In an idle process yield costs nothing. The caller
// holds q.mu, and yield releases q.mu for a moment.
func (q *queue) yield() {
	if q.closed || q.hits >= q.limiter.options.MaxBatchSize {
		return
	}
	q.mu.Unlock()
	for range yieldCount {
		runtime.Gosched()
	}
	q.mu.Lock()
}

func (q *queue) work(ctx context.Context) {
	b := &batch{queue: q}
	var calls []*call
	for {
		clear(calls)
		calls, b.queued = q.pop(calls[:0])
		if len(calls) == 0 || !b.run(ctx, calls) {
			return
		}
	}
}

// replaceWorker starts a worker in the place of a worker whose batch is late. The client also looks
// for the servers again, because the servers of a Cluster may have changed.
func (q *queue) replaceWorker(ctx context.Context) {
	q.limiter.options.Observer.Failed(q.pool.role, KindTimeout)
	q.pool.client.reload(nil)
	q.limiter.workers.Go(func() { q.work(ctx) })
}

// close ends the workers once the queue is empty.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.callsChanged.Broadcast()
}

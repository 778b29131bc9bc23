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

// queue holds the calls of one partition until a worker sends them. A worker takes as
// many calls as fit in a batch, so an idle queue sends at once and a busy queue sends
// larger batches.
type queue struct {
	limiter  *Limiter
	pool     *pool
	keyspace keyspace
	expiries *expiryTable
	doubtful doubtfulKeys
	pace     pace
	counts   lastCounts

	mu      sync.Mutex // guards the fields below
	changed sync.Cond  // signals a call or the close to workers
	small   []*call    // calls of at most smallCallHits
	large   []*call    // the other calls
	hits    int        // of all calls
	closed  bool

	// largeNext makes large calls go first in the next batch. Batches alternate, so a call
	// with many hits delays the others by one batch at most.
	largeNext bool
}

// smallCallHits is the number of hits up to which a call is small. Nearly all calls of Envoy
// are.
const smallCallHits = 16

// startQueue returns a queue with its workers.
func (l *Limiter) startQueue(ctx context.Context, p *pool, k keyspace) *queue {
	q := &queue{limiter: l, pool: p, keyspace: k, expiries: newExpiryTable(maxKnownKeys / p.partitions)}
	q.counts.buckets = newLastCounts(maxLastCounts / p.partitions)
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
	if len(c.hits) <= smallCallHits {
		q.small = append(q.small, c)
	} else {
		q.large = append(q.large, c)
	}
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
	for yielded := false; q.hits == 0 && !q.closed || !yielded; {
		if q.hits == 0 && !q.closed {
			q.changed.Wait()
			continue
		}
		q.yield() // another worker may take the calls meanwhile
		yielded = true
	}
	first, second := &q.small, &q.large
	if q.largeNext {
		first, second = second, first
	}
	q.largeNext = !q.largeNext && len(q.large) > 0
	before := q.hits
	batch = q.move(batch, first, before)
	batch = q.move(batch, second, before)
	return batch, q.hits
}

// move moves calls from the front of list to batch, as long as the batch has at most
// MaxBatchSize hits or no other call. before is the number of hits that waited before the
// batch. The caller holds q.mu.
func (q *queue) move(batch []*call, list *[]*call, before int) []*call {
	n := 0
	for _, c := range *list {
		if before-q.hits+len(c.hits) > q.limiter.options.MaxBatchSize && len(batch) > 0 {
			break
		}
		q.hits -= len(c.hits)
		batch = append(batch, c)
		n++
	}
	*list = slices.Delete(*list, 0, n)
	return batch
}

// yields is how often a worker lets other goroutines run before it takes a batch.
const yields = 2

// yield lets callers that are ready add their calls to the batch. It costs an idle process
// nothing, and in a busy process it doubles the batch. The caller has the lock, which yield
// releases for a time.
func (q *queue) yield() {
	if q.closed || q.hits >= q.limiter.options.MaxBatchSize {
		return
	}
	q.mu.Unlock()
	for range yields {
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

// replaceWorker starts a worker in the place of a worker whose batch is late. If the servers of
// a Cluster have changed, the client finds the new ones.
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
	q.changed.Broadcast()
}

package redis

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// maxCallHits bounds the hits of a call, and so the keys of a script. Lua can pass about 8,000 values to a function.
const maxCallHits = 4096

// Errors of hits that were never sent.
var (
	errFull    = notSent(backend.ReasonOverload, "too many hits are waiting")
	errTooMany = notSent(backend.ReasonOverload, fmt.Sprintf("more than %d hits at once", maxCallHits))
	errExpired = notSent(backend.ReasonOverload, "time was up before the hits were sent")
	errStalled = notSent(backend.ReasonLate, "hits before these hits have no answer")
	errClosed  = failed(errors.New("redis: closed"))
)

func notSent(reason backend.Reason, text string) error {
	return &backend.Error{Reason: reason, NotSent: true, Cause: errors.New("redis: " + text)}
}

func failed(err error) error { return &backend.Error{Reason: backend.ReasonOutage, Cause: err} }

// partitionQueue has the calls of one partition until a worker sends as many of them as fit in a batch.
type partitionQueue struct {
	limiter        *Limiter
	instance       *redisInstance
	keyspace       keyspace
	keysWithTTL    *ttlTable
	keysWithoutTTL keysWithoutTTL
	pace           pace
	counts         lastCounts

	mu           sync.Mutex // guards the fields below
	callsChanged sync.Cond  // signals a call or the close to workers
	smallCalls   []*call    // calls of at most maxSmallCallHits
	largeCalls   []*call    // the other calls
	hits         int        // the number of hits of all calls
	isLargeFirst bool       // large calls go first in the next batch; batches alternate, so they delay others by one batch
	isClosed     bool
}

// maxSmallCallHits is the most hits of a small call. Nearly all calls of Envoy are small.
const maxSmallCallHits = 16

func (l *Limiter) startQueue(ctx context.Context, instance *redisInstance, k keyspace) *partitionQueue {
	q := &partitionQueue{limiter: l, instance: instance, keyspace: k, keysWithTTL: newTTLTable(maxKnownKeys / instance.partitions)}
	q.counts.buckets = newLastCounts(maxLastCounts / instance.partitions)
	q.callsChanged.L = &q.mu
	for range instance.inflightBatches {
		l.workers.Go(func() { q.work(ctx) })
	}
	return q
}

// push hands a call to the workers, who answer and finish it, unless push returns an error.
func (q *partitionQueue) push(c *call) error {
	if len(c.hits) > maxCallHits {
		return errTooMany
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.isClosed:
		return errClosed
	case q.hits > 0 && q.hits+len(c.hits) > q.limiter.options.MaxQueueSize:
		return errFull
	}
	if len(c.hits) <= maxSmallCallHits {
		q.smallCalls = append(q.smallCalls, c)
	} else {
		q.largeCalls = append(q.largeCalls, c)
	}
	q.hits += len(c.hits)
	q.callsChanged.Signal()
	return nil
}

// pop waits for calls, and moves those that fit in one batch to batch. It returns batch, which is empty if the queue
// is closed and empty, and the number of hits that stay in the queue.
func (q *partitionQueue) pop(batch []*call) (_ []*call, queued int) {
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
func (q *partitionQueue) awaitCalls() {
	for q.hits == 0 && !q.isClosed {
		q.callsChanged.Wait()
	}
}

// move moves calls from the front of list to batch, up to MaxBatchSize hits, but at least one call. hitsBefore is the
// number of hits in the queue before the batch. The caller holds q.mu.
func (q *partitionQueue) move(batch []*call, list *[]*call, hitsBefore int) []*call {
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

// yield lets other goroutines push their calls before the worker takes a batch. In a busy process the batch becomes
// twice as large. The caller holds q.mu, and yield releases q.mu for a moment.
func (q *partitionQueue) yield() {
	if q.isClosed || q.hits >= q.limiter.options.MaxBatchSize {
		return
	}
	q.mu.Unlock()
	for range yieldCount {
		runtime.Gosched()
	}
	q.mu.Lock()
}

// work sends batches until the queue is closed, or until another worker replaces this worker.
func (q *partitionQueue) work(ctx context.Context) {
	b := &batch{queue: q}
	var calls []*call
	for {
		clear(calls)
		calls, b.queued = q.pop(calls[:0])
		if len(calls) == 0 || b.run(ctx, calls) {
			return
		}
	}
}

// replaceWorker starts a worker in place of a worker whose batch is late. The servers of a Cluster may have changed.
func (q *partitionQueue) replaceWorker(ctx context.Context) {
	q.limiter.options.Observer.Failed(q.instance.role, KindTimeout)
	q.instance.client.findServersAgain(nil)
	q.limiter.workers.Go(func() { q.work(ctx) })
}

func (q *partitionQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.isClosed = true
	q.callsChanged.Broadcast()
}

// pace shows whether hits wait because Redis is slow, or because there are too many hits. A moment is a result of
// microsSinceProcessStart, or 0 for never.
type pace struct {
	batchesInFlight atomic.Int64
	lastAnswer      atomic.Int64 // the moment at which Redis last answered a batch
	lastFailure     atomic.Int64 // the moment at which a batch last failed
	slowestTime     atomic.Int64 // microseconds that the slowest recent batch took; a batch of 40 ms counts as recent for 40 ms after its end
	slowestEnd      atomic.Int64 // the moment at which the slowest recent batch ended

	hitCost         atomic.Int64 // nanoseconds for each hit of the last large batch
	previousHitCost atomic.Int64 // hitCost of the large batch before the last one; 0 if it ended more than costTime earlier
	hitCostMoment   atomic.Int64 // the moment at which hitCost was measured
}

const (
	largeBatchHits = 64      // the least hits of a large batch; the time of a smaller batch hardly depends on its hits
	costTime       = 300_000 // how long a measured cost of a hit counts, in microseconds
)

func (p *pace) begin() { p.batchesInFlight.Add(1) }

// end records that Redis has answered a batch after the time took, or that the batch has failed with err.
func (p *pace) end(took time.Duration, hits int, err error) {
	p.batchesInFlight.Add(-1)
	p.recordHitCost(took, hits, err)
	now, slowest := microsSinceProcessStart(), p.slowestTime.Load()
	if err != nil {
		p.lastFailure.Store(now)
		return
	}
	p.lastAnswer.Store(now)
	if took.Microseconds() >= slowest || now-p.slowestEnd.Load() > slowest {
		p.slowestTime.Store(took.Microseconds())
		p.slowestEnd.Store(now)
	}
}

// recordHitCost records the cost of a hit of a large batch. If it failed, it would have taken longer.
func (p *pace) recordHitCost(took time.Duration, hits int, err error) {
	if hits < largeBatchHits {
		return
	}
	if err != nil {
		took *= 2
	}
	now, previous := microsSinceProcessStart(), p.hitCost.Load()
	if now-p.hitCostMoment.Load() > costTime {
		previous = 0
	}
	p.previousHitCost.Store(previous)
	p.hitCost.Store(took.Nanoseconds() / int64(hits))
	p.hitCostMoment.Store(now)
}

// expectedTime returns the least time that a batch with this number of hits will take, or 0 if no cost is known. It
// uses the faster one of the last two large batches.
func (p *pace) expectedTime(hits int) time.Duration {
	if hits < largeBatchHits || microsSinceProcessStart()-p.hitCostMoment.Load() > costTime {
		return 0
	}
	return time.Duration(min(p.hitCost.Load(), p.previousHitCost.Load()) * int64(hits))
}

// isStalled reports whether Redis is the cause of a wait in the queue until now: one batch took at least half of the
// wait, or Redis answered no batch.
func (p *pace) isStalled(waitTime time.Duration) bool {
	waitStart := microsSinceProcessStart() - waitTime.Microseconds()
	isInWait := func(moment int64) bool { return moment != 0 && moment > waitStart }
	if !isInWait(p.lastAnswer.Load()) {
		return p.batchesInFlight.Load() > 0 || isInWait(p.lastFailure.Load())
	}
	return p.slowestTime.Load() >= waitTime.Microseconds()/2
}

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

// maxPartHits bounds the hits of a requestPart, and so the keys of a script, because Lua can pass only about 8,000 values
// to a function.
const maxPartHits = 4096

// The errors of hits that were never sent.
var (
	errQueueFull   = notSent(backend.ReasonOverload, "too many hits are waiting")
	errTooManyHits = notSent(backend.ReasonOverload, fmt.Sprintf("more than %d hits at once", maxPartHits))
	errExpired     = notSent(backend.ReasonOverload, "time was up before the hits were sent")
	errStalled     = notSent(backend.ReasonLate, "earlier hits have no answer yet")
	errClosed      = failed(errors.New("redis: closed"))
)

func notSent(reason backend.Reason, text string) error {
	return &backend.Error{Reason: reason, NotSent: true, Cause: errors.New("redis: " + text)}
}

func failed(err error) error { return &backend.Error{Reason: backend.ReasonOutage, Cause: err} }

// partitionQueue has the request parts of one partition. A worker takes as many parts as fit in a batch, and sends them.
type partitionQueue struct {
	limiter        *Limiter
	instance       *redisInstance
	keyspace       keyspace
	keysWithTTL    *ttlTable
	keysWithoutTTL keysWithoutTTL
	pace           pace
	counts         lastCounts

	mu           sync.Mutex     // guards the fields below
	partsChanged sync.Cond      // tells workers that the queue has parts, or is closed
	smallParts   []*requestPart // parts of at most maxSmallPartHits
	largeParts   []*requestPart // the other parts
	hitCount     int            // hits of all parts
	isLargeFirst bool           // the next batch begins with large parts; batches alternate, so large parts delay a small part by one batch at most
	isClosed     bool
}

// maxSmallPartHits is the largest number of hits of a small part. Nearly all requests of Envoy are small.
const maxSmallPartHits = 16

func (l *Limiter) startQueue(ctx context.Context, instance *redisInstance, k keyspace) *partitionQueue {
	q := &partitionQueue{limiter: l, instance: instance, keyspace: k, keysWithTTL: newTTLTable(maxKnownKeys / instance.partitions)}
	q.counts.buckets = newLastCounts(maxLastCounts / instance.partitions)
	q.partsChanged.L = &q.mu
	for range instance.inflightBatches {
		l.workers.Go(func() { q.work(ctx) })
	}
	return q
}

// push adds p to the queue. The workers answer p and finish it, unless push returns an error.
func (q *partitionQueue) push(p *requestPart) error {
	if len(p.hits) > maxPartHits {
		return errTooManyHits
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.isClosed:
		return errClosed
	case q.hitCount > 0 && q.hitCount+len(p.hits) > q.limiter.options.MaxQueueSize:
		return errQueueFull
	}
	if len(p.hits) <= maxSmallPartHits {
		q.smallParts = append(q.smallParts, p)
	} else {
		q.largeParts = append(q.largeParts, p)
	}
	q.hitCount += len(p.hits)
	q.partsChanged.Signal()
	return nil
}

// pop waits until the queue has parts, appends the parts of one batch to batch, and returns batch. The result is empty
// if the queue is closed and empty. hitsLeft is the number of hits that stay in the queue.
func (q *partitionQueue) pop(batch []*requestPart) (_ []*requestPart, hitsLeft int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.awaitParts()
	q.yield()
	q.awaitParts() // another worker may have taken the parts
	firstList, secondList := &q.smallParts, &q.largeParts
	if q.isLargeFirst {
		firstList, secondList = secondList, firstList
	}
	q.isLargeFirst = !q.isLargeFirst && len(q.largeParts) > 0
	hitsBefore := q.hitCount
	batch = q.move(batch, firstList, hitsBefore)
	batch = q.move(batch, secondList, hitsBefore)
	return batch, q.hitCount
}

// awaitParts waits until the queue has parts or is closed. The caller holds q.mu.
func (q *partitionQueue) awaitParts() {
	for q.hitCount == 0 && !q.isClosed {
		q.partsChanged.Wait()
	}
}

// move moves parts from the front of list to batch. batch gets at most MaxBatchSize hits, or a single larger
// part. hitsBefore is the number of hits that the queue had before the batch. The caller holds q.mu.
func (q *partitionQueue) move(batch []*requestPart, list *[]*requestPart, hitsBefore int) []*requestPart {
	n := 0
	for _, p := range *list {
		if hitsBefore-q.hitCount+len(p.hits) > q.limiter.options.MaxBatchSize && len(batch) > 0 {
			break
		}
		q.hitCount -= len(p.hits)
		batch = append(batch, p)
		n++
	}
	*list = slices.Delete(*list, 0, n)
	return batch
}

// yieldCount is how often a worker yields before it takes a batch.
const yieldCount = 2

// yield lets other goroutines push their parts before the worker takes a batch. In a busy process, this makes the batch
// twice as large. The caller holds q.mu, and yield releases q.mu for a moment.
func (q *partitionQueue) yield() {
	if q.isClosed || q.hitCount >= q.limiter.options.MaxBatchSize {
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
	var parts []*requestPart
	for {
		clear(parts)
		parts, b.queuedHits = q.pop(parts[:0])
		if len(parts) == 0 || b.run(ctx, parts) {
			return
		}
	}
}

// replaceWorker starts a worker in place of a worker whose batch is late. It also looks for the servers again, because
// the servers of a Cluster may have changed.
func (q *partitionQueue) replaceWorker(ctx context.Context) {
	q.limiter.options.Observer.Failed(q.instance.role, KindTimeout)
	q.instance.client.findServersAgain(nil)
	q.limiter.workers.Go(func() { q.work(ctx) })
}

func (q *partitionQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.isClosed = true
	q.partsChanged.Broadcast()
}

// pace records how fast Redis answers batches. It tells whether hits wait because Redis is slow, or because there are
// too many hits. A moment is a result of microsSinceProcessStart, or 0 if nothing has happened yet.
type pace struct {
	batchesInFlight atomic.Int64
	lastAnswer      atomic.Int64 // the moment at which Redis last answered a batch
	lastFailure     atomic.Int64 // the moment at which a batch last failed
	slowestTime     atomic.Int64 // how long the slowest recent batch took, in microseconds; a batch of 40 ms counts as recent for 40 ms after its end
	slowestEnd      atomic.Int64 // the moment at which the slowest recent batch ended

	hitCost         atomic.Int64 // the duration of the last large batch, divided by its hits, in nanoseconds
	previousHitCost atomic.Int64 // the hitCost of the previous large batch; 0 if this batch ended more than costTime earlier
	hitCostMoment   atomic.Int64 // the moment at which hitCost was measured
}

const (
	largeBatchHits = 64      // the least hits of a large batch; the duration of a smaller batch hardly depends on its hits
	costTime       = 300_000 // how long a hitCost is used after its measurement, in microseconds
)

func (p *pace) begin() { p.batchesInFlight.Add(1) }

// end records that Redis has answered a batch after this duration, or that the batch has failed with err.
func (p *pace) end(duration time.Duration, hits int, err error) {
	p.batchesInFlight.Add(-1)
	p.recordHitCost(duration, hits, err)
	now, slowestTime := microsSinceProcessStart(), p.slowestTime.Load()
	if err != nil {
		p.lastFailure.Store(now)
		return
	}
	p.lastAnswer.Store(now)
	if duration.Microseconds() >= slowestTime || now-p.slowestEnd.Load() > slowestTime {
		p.slowestTime.Store(duration.Microseconds())
		p.slowestEnd.Store(now)
	}
}

// recordHitCost records the cost of a hit of a large batch. After a failure it doubles the cost, because the answer would
// have come later.
func (p *pace) recordHitCost(duration time.Duration, hits int, err error) {
	if hits < largeBatchHits {
		return
	}
	if err != nil {
		duration *= 2
	}
	now, previousCost := microsSinceProcessStart(), p.hitCost.Load()
	if now-p.hitCostMoment.Load() > costTime {
		previousCost = 0
	}
	p.previousHitCost.Store(previousCost)
	p.hitCost.Store(duration.Nanoseconds() / int64(hits))
	p.hitCostMoment.Store(now)
}

// expectedTime returns the least time that a batch with this number of hits will take, or 0 if no cost is known. It
// uses the cost of the faster of the last two large batches.
func (p *pace) expectedTime(hits int) time.Duration {
	if hits < largeBatchHits || microsSinceProcessStart()-p.hitCostMoment.Load() > costTime {
		return 0
	}
	return time.Duration(min(p.hitCost.Load(), p.previousHitCost.Load()) * int64(hits))
}

// isStalled reports whether Redis caused a wait in the queue that ends now: either one batch took at least half of the
// wait, or Redis answered no batch during the wait.
func (p *pace) isStalled(waitTime time.Duration) bool {
	waitStart := microsSinceProcessStart() - waitTime.Microseconds()
	isDuringWait := func(moment int64) bool { return moment != 0 && moment > waitStart }
	if !isDuringWait(p.lastAnswer.Load()) {
		return p.batchesInFlight.Load() > 0 || isDuringWait(p.lastFailure.Load())
	}
	return p.slowestTime.Load() >= waitTime.Microseconds()/2
}

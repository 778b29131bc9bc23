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

// maxPartHits bounds the hits of a requestPart. The script passes all its keys to one function, and Lua can pass only
// about 8,000 values.
const maxPartHits = 4096

// The errors of hits that were never sent.
var (
	errQueueFull   = newUnsentError(backend.ReasonOverload, "too many hits are waiting")
	errTooManyHits = newUnsentError(backend.ReasonOverload, fmt.Sprintf("more than %d hits at once", maxPartHits))
	errExpired     = newUnsentError(backend.ReasonOverload, "the time of the call ended before the hits were sent")
	errStalled     = newUnsentError(backend.ReasonLate, "earlier hits have no answer yet")
	errClosed      = newOutageError(errors.New("redis: closed"))
)

func newUnsentError(reason backend.Reason, text string) error {
	return &backend.Error{Reason: reason, NotSent: true, Cause: errors.New("redis: " + text)}
}

func newOutageError(err error) error { return &backend.Error{Reason: backend.ReasonOutage, Cause: err} }

// partitionQueue has the request parts of one partition. A worker takes as many parts as fit in a batch, and sends them.
type partitionQueue struct {
	limiter         *Limiter
	instance        *redisInstance
	keyspace        keyspace // the start of the names of the partition's keys
	keysWithTTL     *ttlTable
	ttlCommandStore ttlCommandStore // the commands for the next batches that set a time to live
	timing          batchTiming
	lastCounts      lastCounts // the last answer of Redis about each counter

	mu           sync.Mutex     // guards the fields below
	wakeWorkers  sync.Cond      // wakes workers when the queue gets a part, or is closed
	smallParts   []*requestPart // parts of at most maxSmallPartHits
	largeParts   []*requestPart // the other parts
	hitCount     int            // hits of all parts
	isLargeFirst bool           // the next batch begins with large parts; never true for two batches in a row, so small parts wait for one batch at most
	isClosed     bool
}

// maxSmallPartHits is the largest number of hits of a small part. Nearly all requests of Envoy are small.
const maxSmallPartHits = 16

func (l *Limiter) startQueue(ctx context.Context, instance *redisInstance, k keyspace) *partitionQueue {
	q := &partitionQueue{limiter: l, instance: instance, keyspace: k, keysWithTTL: newTTLTable(maxTTLKeys / instance.partitions)}
	q.lastCounts.buckets = newCountBuckets(maxLastCounts / instance.partitions)
	q.wakeWorkers.L = &q.mu
	for range instance.maxInflightBatches {
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
	q.wakeWorkers.Signal()
	return nil
}

// pop waits until the queue has parts. Then it moves the parts of one batch to emptyList, and returns this list. The
// list stays empty if the queue is closed and empty. queuedHits is the number of hits that stay in the queue.
func (q *partitionQueue) pop(emptyList []*requestPart) (parts []*requestPart, queuedHits int) {
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
	minHitsLeft := q.hitCount - q.limiter.options.MaxBatchSize
	parts = q.moveParts(emptyList, firstList, minHitsLeft)
	parts = q.moveParts(parts, secondList, minHitsLeft)
	return parts, q.hitCount
}

// awaitParts waits until the queue has parts or is closed. The caller holds q.mu.
func (q *partitionQueue) awaitParts() {
	for q.hitCount == 0 && !q.isClosed {
		q.wakeWorkers.Wait()
	}
}

// moveParts moves parts from the front of list to parts, and returns parts. It leaves at least minHitsLeft hits in the queue,
// unless the first part alone is larger than a batch. The caller holds q.mu.
func (q *partitionQueue) moveParts(parts []*requestPart, list *[]*requestPart, minHitsLeft int) []*requestPart {
	movedParts := 0
	for _, p := range *list {
		if q.hitCount-len(p.hits) < minHitsLeft && len(parts) > 0 {
			break
		}
		q.hitCount -= len(p.hits)
		parts = append(parts, p)
		movedParts++
	}
	*list = slices.Delete(*list, 0, movedParts)
	return parts
}

// yieldCount is how often a worker lets other goroutines run before it takes a batch.
const yieldCount = 2

// yield lets other goroutines push their parts before the worker takes a batch. In a busy process, yield doubles the
// size of batches. The caller holds q.mu, and yield releases q.mu for a moment.
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

func (q *partitionQueue) work(ctx context.Context) {
	b := &batch{queue: q}
	var parts []*requestPart
	for {
		clear(parts)
		parts, b.queuedHits = q.pop(parts[:0])
		if isClosed := len(parts) == 0; isClosed || b.run(ctx, parts) { // run reports whether the worker is replaced
			return
		}
	}
}

// replaceWorker starts a worker in place of a worker whose batch is late. It also looks for the servers again, because
// the servers of a Cluster may have changed.
func (q *partitionQueue) replaceWorker(ctx context.Context) {
	q.limiter.options.Observer.ErrorOccurred(q.instance.role, KindTimeout)
	q.instance.client.findServersAgain(nil)
	q.limiter.workers.Go(func() { q.work(ctx) })
}

func (q *partitionQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.isClosed = true
	q.wakeWorkers.Broadcast()
}

// batchTiming records how fast Redis answers batches. It tells whether hits wait because Redis is slow, or because there
// are too many hits. A moment is a time in microseconds since processStart, or 0 before the first event.
type batchTiming struct {
	batchesInFlight atomic.Int64
	lastAnswer      atomic.Int64 // the moment at which Redis last answered a batch
	lastFailure     atomic.Int64 // the moment at which a batch last failed
	slowestDuration atomic.Int64 // the duration of the slowest recent batch, in microseconds; a batch of 40 ms is recent for 40 ms after its end
	slowestEnd      atomic.Int64 // the moment at which the slowest recent batch ended

	hitCost         atomic.Int64 // the duration of the last large batch, divided by its hits, in nanoseconds
	previousHitCost atomic.Int64 // the last hitCost before the current one; 0 if more than hitCostLife lies between them
	hitCostMoment   atomic.Int64 // the moment at which hitCost was measured
}

const (
	largeBatchHits = 64      // the least hits of a large batch; the duration of a smaller batch hardly depends on its hits
	hitCostLife    = 300_000 // how long a hitCost is used after its measurement, in microseconds
)

func (t *batchTiming) begin() { t.batchesInFlight.Add(1) }

// end records that Redis has answered a batch after this duration, or that the batch has failed with err.
func (t *batchTiming) end(duration time.Duration, hits int, err error) {
	t.batchesInFlight.Add(-1)
	t.recordHitCost(duration, hits, err)
	now, slowestDuration := microsSinceProcessStart(), t.slowestDuration.Load()
	if err != nil {
		t.lastFailure.Store(now)
		return
	}
	t.lastAnswer.Store(now)
	if duration.Microseconds() >= slowestDuration || now-t.slowestEnd.Load() > slowestDuration {
		t.slowestDuration.Store(duration.Microseconds())
		t.slowestEnd.Store(now)
	}
}

// recordHitCost records the cost of a hit of a large batch. After a failure it doubles the cost, because the answer would
// have come later.
func (t *batchTiming) recordHitCost(duration time.Duration, hits int, err error) {
	if hits < largeBatchHits {
		return
	}
	if err != nil {
		duration *= 2
	}
	now, previousCost := microsSinceProcessStart(), t.hitCost.Load()
	if now-t.hitCostMoment.Load() > hitCostLife {
		previousCost = 0
	}
	t.previousHitCost.Store(previousCost)
	t.hitCost.Store(duration.Nanoseconds() / int64(hits))
	t.hitCostMoment.Store(now)
}

// expectedTime returns the least time that a batch with this number of hits will take, or 0 if no cost is known. It
// uses the cost of the faster of the last two large batches.
func (t *batchTiming) expectedTime(hits int) time.Duration {
	if hits < largeBatchHits || microsSinceProcessStart()-t.hitCostMoment.Load() > hitCostLife {
		return 0
	}
	return time.Duration(min(t.hitCost.Load(), t.previousHitCost.Load()) * int64(hits))
}

// isStalled reports whether a slow Redis is the reason that a hit has waited for waitTime. Redis is slow if one batch
// took at least half of the wait, or if Redis answered no batch during the wait.
func (t *batchTiming) isStalled(waitTime time.Duration) bool {
	waitStart := microsSinceProcessStart() - waitTime.Microseconds()
	isDuringWait := func(moment int64) bool { return moment != 0 && moment > waitStart }
	if !isDuringWait(t.lastAnswer.Load()) {
		return t.batchesInFlight.Load() > 0 || isDuringWait(t.lastFailure.Load())
	}
	return t.slowestDuration.Load() >= waitTime.Microseconds()/2
}

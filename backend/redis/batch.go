package redis

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// Observer learns about batches and probes. The workers of all queues call it at the same time, so it must not block.
type Observer interface {
	BatchDone(Batch)

	// ErrorOccurred is called for each error of a batch or of one hit, even if rls sends the batch again.
	ErrorOccurred(Role, ErrorKind)

	// CountersLost is called if a probe finds that a shard has lost charges without an error, such as by
	// FLUSHALL, a restart or a failover. all means that all counters of the shard start at 0.
	CountersLost(_ Role, all bool)
}

// Batch describes a batch that was answered or has failed.
type Batch struct {
	Role       Role
	Hits       int           // hits in the batch
	QueuedHits int           // hits that stayed in the queue when a worker took the batch
	Wait       time.Duration // time from the first Take with a hit in the batch until rls sent the batch
	Duration   time.Duration // time from the sending of the batch until the answer of Redis
	Err        error         // nil if Redis has executed the batch

	// HasTooFewReplicas reports whether fewer Redis replicas than Options.WaitReplicas have the charges.
	HasTooFewReplicas bool

	// IsStalled reports whether the batch took much longer than RoundTrip, because Redis executed no commands for a
	// while. RoundTrip is 0 if IsStalled is false.
	IsStalled bool
	RoundTrip time.Duration
}

type noObserver struct{}

func (noObserver) BatchDone(Batch)               {}
func (noObserver) ErrorOccurred(Role, ErrorKind) {}
func (noObserver) CountersLost(Role, bool)       {}

// batch sends hits of many requests to Redis in one step. It belongs to one worker and reuses its memory.
type batch struct {
	queue      *partitionQueue
	hits       []*pendingHit
	queuedHits int       // the hits that stayed in the queue
	firstStart time.Time // the earliest start of a Take that has hits in the batch

	deadline       time.Time     // the latest deadline of the requests
	answerDeadline time.Time     // when the batch stops waiting for Redis; later than deadline if the batch waits for a late answer
	deadlineWatch  deadlineWatch // starts another worker if the answer is late

	now                 int64         // the time of the hits in microseconds since 1970; only for requests that gave no time
	counters            counterSet    // the counters of all hits
	scriptHits          []*pendingHit // the hits that the script decides
	script              scriptCall
	hasDistinctCounters bool // each of the scriptHits has its own counter
	isScriptDone        bool // all scriptHits have an answer
	mustSendScript      bool // Redis needs the text of the script
	hasGroups           bool // some hits are all-or-none: the hits of a request form a group
	mayRefund           bool // some charges may be refunded; see pendingHit.mayBeRefunded
	hasOneKey           bool // all hits have the same key, so rls sends single commands, and go-redis follows their redirects
	commands            []goredis.Cmder
	getMarkCommand      *goredis.StringCmd // GET of the refund mark, which exists while charges may be refunded; nil before the first use
	batchError          error              // the first error that is not about a single key
	hasTooFewReplicas   bool               // too few Redis replicas have the charges
	reportedKinds       uint32             // a bit for each ErrorKind that the Observer got in the current attempt
}

// run sends the hits of the parts, and then answers and finishes the parts. It reports whether another worker has
// replaced the worker of b.
func (b *batch) run(ctx context.Context, parts []*requestPart) (isReplaced bool) {
	start := time.Now()
	b.collectHits(parts, start)
	if len(b.hits) > 0 {
		isReplaced = b.sendAndReport(ctx, start)
	}
	clear(b.hits)
	for _, p := range parts {
		p.finish()
	}
	return isReplaced
}

// collectHits sets the hits of the batch. It leaves out abandoned parts. If the sendDeadline of a part has passed, or if a
// large part would take too long, the part gets an error.
func (b *batch) collectHits(parts []*requestPart, now time.Time) {
	b.hits, b.deadline = b.hits[:0], time.Time{}
	for _, p := range parts {
		expectedEnd := now.Add(b.queue.timing.expectedTime(len(b.hits) + len(p.hits)))
		isTooLarge := len(p.hits) > maxSmallPartHits && expectedEnd.After(p.deadline)
		switch {
		case now.After(p.sendDeadline) || isTooLarge:
			p.fail(p.notSentError(nil))
			continue
		case !p.stage.CompareAndSwap(stageQueued, stageSent): // the Take has abandoned the part
			continue
		}
		if len(b.hits) == 0 || p.start.Before(b.firstStart) {
			b.firstStart = p.start
		}
		if p.deadline.After(b.deadline) {
			b.deadline = p.deadline
		}
		for i := range p.hits {
			b.hits = append(b.hits, &p.hits[i])
		}
	}
}

// sendAndReport sends the hits, and tells the Observer and the Tracer about the batch. It returns true if another worker
// has replaced the worker of b at the deadline.
func (b *batch) sendAndReport(ctx context.Context, start time.Time) (isReplaced bool) {
	b.answerDeadline = b.deadline
	canBeLate := b.deadlineWatch.start(ctx, b.queue, b.deadline)
	if canBeLate {
		b.answerDeadline = b.deadline.Add(lateAnswerTime)
	}
	b.queue.timing.begin()
	sendCtx, cancel := context.WithDeadline(ctx, b.answerDeadline)
	err := b.send(sendCtx)
	cancel()
	duration := time.Since(start)
	b.queue.timing.end(duration, len(b.hits), err)
	if canBeLate {
		isReplaced = b.deadlineWatch.end(b.queue)
	}
	sentBatch := Batch{
		Role: b.queue.instance.role, Hits: len(b.hits), QueuedHits: b.queuedHits, Wait: start.Sub(b.firstStart), Duration: duration, Err: err,
		HasTooFewReplicas: b.hasTooFewReplicas,
	}
	sentBatch.detectStall(b.queue.limiter)
	b.queue.limiter.options.Observer.BatchDone(sentBatch)
	b.sendToTracer(sentBatch, start)
	return isReplaced
}

// forEachPart calls f with the hits of each requestPart. In hits, the hits of a part are neighbors.
func forEachPart(hits []*pendingHit, f func([]*pendingHit)) {
	for len(hits) > 0 {
		n := 1
		for n < len(hits) && hits[n].part == hits[0].part {
			n++
		}
		f(hits[:n])
		hits = hits[n:]
	}
}

// markCharged sets isCharged of the all-or-none hits of one requestPart, unless a hit denies the group. A hit that renews
// a hold is not charged.
func markCharged(hits []*pendingHit) {
	for _, h := range hits {
		if h.DeniesGroup(&h.answer.Result) {
			return
		}
	}
	for _, h := range hits {
		h.answer.isCharged = h.IsInGroup() && h.answer.Err == nil && h.answer.Allowed && !h.answer.HoldExists
	}
}

// Tracer receives each batch, right after the Observer. The workers of all queues call it at the same time, so it must
// not block.
type Tracer interface {
	// BatchAnswered receives a batch that was sent at start. takeContexts has the context of each Take with hits in
	// the batch. A Take may have returned before BatchAnswered is called.
	BatchAnswered(b Batch, start time.Time, takeContexts []context.Context)
}

func (b *batch) sendToTracer(sentBatch Batch, start time.Time) {
	t := b.queue.limiter.options.Tracer
	if t == nil {
		return
	}
	var takeContexts []context.Context
	for i, h := range b.hits {
		if h.part.ctx != nil && (i == 0 || h.part != b.hits[i-1].part) {
			takeContexts = append(takeContexts, h.part.ctx)
		}
	}
	t.BatchAnswered(sentBatch, start, takeContexts)
}

// deadlineWatch starts another worker if a batch has no answer at its deadline. The other worker sends the next batches,
// while the first worker waits for the late answer.
type deadlineWatch struct {
	timer *time.Timer
	state *atomic.Int32 // the state of the batch in flight
}

// The states of the batch in a deadlineWatch.
const (
	batchEnded int32 = iota
	batchInTime
	batchLate // another worker has replaced the worker of the batch
)

// start begins to watch a batch, and returns true. If too many batches of the Redis are watched already, start returns
// false, because each late batch keeps a connection. The batch must then stop waiting at its deadline.
func (w *deadlineWatch) start(ctx context.Context, q *partitionQueue, deadline time.Time) (canBeLate bool) {
	if q.instance.watchedBatches.Add(1) > q.instance.maxWatchedBatches {
		q.instance.watchedBatches.Add(-1)
		return false
	}
	if w.timer == nil {
		state := new(atomic.Int32)
		w.state = state
		w.timer = time.AfterFunc(math.MaxInt64, func() {
			if state.CompareAndSwap(batchInTime, batchLate) {
				q.replaceWorker(ctx)
			}
		})
	}
	w.state.Store(batchInTime)
	w.timer.Reset(time.Until(deadline))
	return true
}

func (w *deadlineWatch) isLate() bool { return w.state != nil && w.state.Load() == batchLate }

// end ends the watch. It returns true if another worker has replaced the worker of the batch.
func (w *deadlineWatch) end(q *partitionQueue) (isReplaced bool) {
	q.instance.watchedBatches.Add(-1)
	if !w.timer.Stop() {
		w.timer = nil // the function of this timer may still run, so the next batch gets a new timer with a state of its own
	}
	return !w.state.CompareAndSwap(batchInTime, batchEnded)
}

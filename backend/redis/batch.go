package redis

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// Observer learns about batches. It is called by the workers of all queues at once and must not block.
type Observer interface {
	BatchDone(Batch)

	// Failed is called for each error of a batch or of one hit, even if rls sends the batch again.
	Failed(Role, ErrorKind)
}

// Batch describes a batch that was answered or has failed.
type Batch struct {
	Role       Role
	Hits       int           // hits in the batch
	QueuedHits int           // hits that stayed in the queue when the batch was sent
	Wait       time.Duration // time from the first Take with a hit in the batch until rls sent the batch
	Duration   time.Duration // time until the answer of Redis
	Err        error         // nil if Redis has executed the batch

	// ReplicasMissing reports whether fewer Redis replicas than Options.WaitReplicas have the charges.
	ReplicasMissing bool
}

type noObserver struct{}

func (noObserver) BatchDone(Batch)        {}
func (noObserver) Failed(Role, ErrorKind) {}

// batch sends hits of many calls to Redis in one step. It belongs to one worker and reuses its memory.
type batch struct {
	queue      *partitionQueue
	hits       []*pendingHit
	queuedHits int       // see Batch.QueuedHits
	firstStart time.Time // the earliest start of a Take that has hits in the batch

	deadline       time.Time // the latest deadline of the calls
	answerDeadline time.Time // when the batch stops waiting for Redis; later than deadline if the batch waits for a late answer
	lateWatch      lateWatch // starts another worker if the answer is late

	now                 int64         // microseconds since 1970; the time of the hits, unless their request has a time
	counters            counterSet    // the counters of all hits
	scriptHits          []*pendingHit // the hits that the script decides
	script              scriptCall
	hasDistinctCounters bool // each of the scriptHits has its own counter
	isScriptDone        bool // all scriptHits have an answer
	mustSendScript      bool // Redis needs the text of the script
	hasGroups           bool // some hits are all-or-none
	mayRefund           bool // some charges may be refunded; see pendingHit.mayBeRefunded
	hasOneKey           bool // all hits have one key; rls sends each command alone, so that the client follows redirects
	commands            []goredis.Cmder
	readMarkCommand     *goredis.StringCmd // reads the refundableMark; nil before the first use
	batchError          error              // the first error that is not about a single key
	replicasMissing     bool               // see Batch.ReplicasMissing
	reportedKinds       uint32             // a bit for each ErrorKind that this attempt has passed to the Observer
}

// run sends the calls, and then answers and finishes them. It reports whether another worker has replaced the worker
// of b.
func (b *batch) run(ctx context.Context, calls []*call) (isReplaced bool) {
	start := time.Now()
	b.collectHits(calls, start)
	if len(b.hits) > 0 {
		isReplaced = b.sendWatched(ctx, start)
	}
	clear(b.hits)
	for _, c := range calls {
		c.finish()
	}
	return isReplaced
}

// collectHits sets the hits of the batch. It leaves out abandoned calls, calls after their sendDeadline, and large
// calls that would take too long.
func (b *batch) collectHits(calls []*call, now time.Time) {
	b.hits, b.deadline = b.hits[:0], time.Time{}
	for _, c := range calls {
		isTooLarge := len(c.hits) > maxSmallCallHits && now.Add(b.queue.pace.expectedTime(len(b.hits)+len(c.hits))).After(c.deadline)
		switch {
		case now.After(c.sendDeadline) || isTooLarge:
			c.fail(c.notSentError(nil))
			continue
		case !c.stage.CompareAndSwap(stageQueued, stageSent): // the Take has abandoned the call
			continue
		}
		if len(b.hits) == 0 || c.start.Before(b.firstStart) {
			b.firstStart = c.start
		}
		if c.deadline.After(b.deadline) {
			b.deadline = c.deadline
		}
		for i := range c.hits {
			b.hits = append(b.hits, &c.hits[i])
		}
	}
}

// sendWatched sends the hits. It reports whether another worker has replaced the worker of b at the deadline.
func (b *batch) sendWatched(ctx context.Context, start time.Time) (isReplaced bool) {
	b.answerDeadline = b.deadline
	isWatched := b.lateWatch.start(ctx, b.queue, b.deadline)
	if isWatched {
		b.answerDeadline = b.deadline.Add(lateAnswerTime)
	}
	b.queue.pace.begin()
	sendCtx, cancel := context.WithDeadline(ctx, b.answerDeadline)
	err := b.send(sendCtx)
	cancel()
	duration := time.Since(start)
	b.queue.pace.end(duration, len(b.hits), err)
	if isWatched {
		isReplaced = b.lateWatch.end(b.queue)
	}
	sentBatch := Batch{
		Role: b.queue.instance.role, Hits: len(b.hits), QueuedHits: b.queuedHits, Wait: start.Sub(b.firstStart), Duration: duration, Err: err,
		ReplicasMissing: b.replicasMissing,
	}
	b.queue.limiter.options.Observer.BatchDone(sentBatch)
	b.sendToTracer(sentBatch, start)
	return isReplaced
}

func forEachCall(hits []*pendingHit, f func([]*pendingHit)) {
	for len(hits) > 0 {
		n := 1
		for n < len(hits) && hits[n].call == hits[0].call {
			n++
		}
		f(hits[:n])
		hits = hits[n:]
	}
}

// markCharged sets isCharged of the all-or-none hits of a call, unless a hit denies the group. A hit that renews its
// hold charges nothing.
func markCharged(hits []*pendingHit) {
	for _, h := range hits {
		if h.DeniesGroup(&h.answer.Result) {
			return
		}
	}
	for _, h := range hits {
		h.answer.isCharged = h.InGroup() && h.answer.Err == nil && h.answer.Allowed && !h.answer.Held
	}
}

// Tracer receives each batch, right after the Observer. It is called by the workers of all queues at once and must
// not block.
type Tracer interface {
	// BatchAnswered receives a batch that was sent at start. calls has the contexts of the Takes with hits in the
	// batch. Some of these Takes may have returned already.
	BatchAnswered(b Batch, start time.Time, calls []context.Context)
}

func (b *batch) sendToTracer(sentBatch Batch, start time.Time) {
	t := b.queue.limiter.options.Tracer
	if t == nil {
		return
	}
	var calls []context.Context
	for i, h := range b.hits {
		if h.call.ctx != nil && (i == 0 || h.call != b.hits[i-1].call) {
			calls = append(calls, h.call.ctx)
		}
	}
	t.BatchAnswered(sentBatch, start, calls)
}

// lateWatch watches the batch of a worker. If the batch has no answer at its deadline, the worker waits for the late
// answer, and another worker takes its place.
type lateWatch struct {
	timer *time.Timer
	state *atomic.Int32 // the state of the batch in flight
}

// The states of a batch that may become late.
const (
	batchIdle int32 = iota
	batchInTime
	batchLate // another worker has replaced the worker of the batch
)

// start begins to watch a batch. If too many batches could become late, start returns false. Then the batch must not
// wait longer than until its deadline.
func (l *lateWatch) start(ctx context.Context, q *partitionQueue, deadline time.Time) bool {
	if r := q.instance; r.lateBatches.Add(1) > r.maxLateBatches {
		r.lateBatches.Add(-1)
		return false
	}
	if l.timer == nil {
		state := new(atomic.Int32)
		l.state = state
		l.timer = time.AfterFunc(math.MaxInt64, func() {
			if state.CompareAndSwap(batchInTime, batchLate) {
				q.replaceWorker(ctx)
			}
		})
	}
	l.state.Store(batchInTime)
	l.timer.Reset(time.Until(deadline))
	return true
}

func (l *lateWatch) isLate() bool { return l.state != nil && l.state.Load() == batchLate }

// end ends the watch. It reports whether another worker has replaced the worker of the batch.
func (l *lateWatch) end(q *partitionQueue) (isReplaced bool) {
	q.instance.lateBatches.Add(-1)
	if !l.timer.Stop() {
		l.timer = nil // the function of the timer runs, and must not see the next batch
	}
	return !l.state.CompareAndSwap(batchInTime, batchIdle)
}

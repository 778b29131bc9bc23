package redis

import (
	"context"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// Observer learns about batches. It is called by the workers of all queues at once and
// must not block.
type Observer interface {
	BatchDone(Batch)

	// Failed is called for each error of Redis, also if the batch is then sent again. The
	// error concerns a whole batch or one hit.
	Failed(Role, ErrorKind)
}

// Batch describes a batch that was answered or has failed.
type Batch struct {
	Role   Role
	Hits   int           // hits in the batch
	Queued int           // hits that waited in the queue when the batch was sent
	Wait   time.Duration // time from the first hit's Take until the batch was sent
	Took   time.Duration // time until Redis answered
	Err    error         // nil if Redis has executed the batch

	// Unconfirmed reports whether fewer replicas than Options.WaitReplicas have confirmed the
	// charges.
	Unconfirmed bool
}

type noObserver struct{}

func (noObserver) BatchDone(Batch)        {}
func (noObserver) Failed(Role, ErrorKind) {}

// batch sends hits of many calls to Redis in one step. It belongs to one worker and
// reuses its memory.
type batch struct {
	queue  *queue
	hits   []hitRef
	queued int // hits that wait in the queue

	deadline  time.Time // of the call that waits longest
	sendUntil time.Time // the end of the wait for the answer; later than deadline if the answer may be late
	lateWatch lateWatch

	now           int64      // time of the hits whose request has none, in microseconds since 1970
	counters      counterSet // of the hits with windows
	scriptHits    []hitRef   // the hits that the script decides
	script        scriptCall
	isDistinct    bool // each of the scriptHits has its own counter
	isScriptDone  bool
	needsText     bool // Redis does not know the script yet
	isKeyByKey    bool // sends each command alone, so that the client follows redirects
	commands      []goredis.Cmder
	failure       error  // the first error of more than one key
	unconfirmed   bool   // see Batch.Unconfirmed
	reportedKinds uint32 // a bit for each ErrorKind that the observer knows of since the last send
}

// hitRef refers to a hit of a call.
type hitRef struct {
	call *call
	i    int
}

func (h hitRef) pending() *pendingHit { return &h.call.hits[h.i] }
func (h hitRef) answer() *answer      { return &h.call.answers[h.i] }
func (h hitRef) counterName() []byte  { return h.call.counterName(h.i) }

// run sends the calls, and then answers and releases them. Three kinds of calls are not sent: abandoned
// calls, calls after their sendBy, and large calls that would take too long. So a call that fails
// because its time is up is rarely charged. keepsPlace is false if replaceWorker has started another
// worker in the place of this one.
func (b *batch) run(ctx context.Context, calls []*call) (keepsPlace bool) {
	b.hits = b.hits[:0]
	start := time.Now()
	var firstStart time.Time
	b.deadline = time.Time{}
	for _, c := range calls {
		switch {
		case c.isAbandoned.Load():
			continue
		case start.After(c.sendBy), len(c.hits) > smallCallHits && start.Add(b.queue.pace.expectedTime(len(b.hits)+len(c.hits))).After(c.deadline):
			c.fail(c.notSentError(nil))
			continue
		case !c.stage.CompareAndSwap(stageQueued, stageSent):
			continue
		}
		if len(b.hits) == 0 || c.start.Before(firstStart) {
			firstStart = c.start
		}
		if c.deadline.After(b.deadline) {
			b.deadline = c.deadline
		}
		for i := range c.hits {
			b.hits = append(b.hits, hitRef{c, i})
		}
	}
	keepsPlace = true
	if len(b.hits) > 0 {
		b.sendUntil = b.deadline
		isWatched := b.lateWatch.start(ctx, b.queue, b.deadline)
		if isWatched {
			b.sendUntil = b.deadline.Add(lateAnswerTime)
		}
		b.queue.pace.begin()
		sendCtx, cancel := context.WithDeadline(ctx, b.sendUntil)
		err := b.send(sendCtx)
		cancel()
		b.queue.pace.end(time.Since(start), err)
		b.queue.pace.recordCost(time.Since(start), len(b.hits), err)
		if isWatched {
			keepsPlace = b.lateWatch.end(b.queue)
		}
		sentBatch := Batch{
			Role: b.queue.pool.role, Hits: len(b.hits), Queued: b.queued, Wait: start.Sub(firstStart), Took: time.Since(start), Err: err,
			Unconfirmed: b.unconfirmed,
		}
		b.queue.limiter.options.Observer.BatchDone(sentBatch)
		b.sendToTracer(sentBatch, start)
	}
	clear(b.hits)
	for _, c := range calls {
		c.finish()
	}
	return keepsPlace
}

// eachCall calls f with the hits of each call.
func eachCall(hits []hitRef, f func([]hitRef)) {
	for len(hits) > 0 {
		n := 1
		for n < len(hits) && hits[n].call == hits[0].call {
			n++
		}
		f(hits[:n])
		hits = hits[n:]
	}
}

// markCharged sets isCharged of the all-or-none hits of a call, unless one of them is denied. A hit
// that renews its hold charges nothing.
func markCharged(hits []hitRef) {
	for _, h := range hits {
		if h.pending().allOrNone && h.answer().Err == nil && !h.answer().Allowed {
			return
		}
	}
	for _, h := range hits {
		h.answer().isCharged = h.pending().allOrNone && h.answer().Err == nil && !h.answer().Held
	}
}

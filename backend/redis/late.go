package redis

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// lateAnswerTime is how long a worker waits for an answer that no caller waits for any more. The
// answer says what Redis has charged.
const lateAnswerTime = time.Second

// setLateResults sets the results of a Take whose time is up. err is the error of hits that were sent
// and have no answer. Their answers go to the LateError of each hit.
func (r *request) setLateResults(results []backend.Result, err error) {
	for _, c := range r.calls {
		switch {
		case c.stage.CompareAndSwap(stageQueued, stageAbandoned):
			c.setErrors(results, c.notSentError(err))
		case c.setLateErrors(results, err):
		default:
			c.copyResults(results)
		}
	}
}

func (c *call) setErrors(results []backend.Result, err error) {
	for i := range c.hits {
		results[c.hits[i].index] = backend.Result{Err: err}
	}
}

// setLateErrors gives each hit of a call that was sent a LateError. It reports false if the call
// has been answered meanwhile.
func (c *call) setLateErrors(results []backend.Result, err error) bool {
	c.lateErrors = make([]*backend.LateError, len(c.hits))
	for i := range c.lateErrors {
		c.lateErrors[i] = backend.NewLateError(err)
	}
	if !c.stage.CompareAndSwap(stageSent, stageAbandoned) {
		return false
	}
	for i, late := range c.lateErrors {
		results[c.hits[i].index] = backend.Result{Err: late}
	}
	return true
}

// deliverLate passes the answers to the LateErrors of the hits. If a denied hit has kept an
// all-or-none hit from being charged, the late answer denies the all-or-none hit too.
func (c *call) deliverLate() {
	for i, late := range c.lateErrors {
		r := c.answers[i].Result
		r.Allowed = r.Allowed && (!c.hits[i].allOrNone || c.answers[i].charged)
		late.Arrive(r)
	}
}

// pace is the recent speed of a queue's batches. It shows whether hits wait because Redis is
// slow, or because they are too many.
type pace struct {
	inFlight     atomic.Int64 // batches
	lastAnswer   atomic.Int64 // when a batch was last answered; a result of sinceStart
	lastFailure  atomic.Int64 // when a batch last failed
	slowDuration atomic.Int64 // of the slowest recent batch, in microseconds
	slowEnd      atomic.Int64 // of this batch; a batch is recent for as long as it took

	hitCost       atomic.Int64 // nanoseconds for a hit, of the last large batch
	hitCostBefore atomic.Int64 // of the large batch before; 0 if that was more than costTime earlier
	hitCostEnd    atomic.Int64 // of the last large batch
}

const (
	// largeBatchHits is the number of hits from which the time of a batch depends on them.
	largeBatchHits = 64

	// costTime is how long the cost of a hit is believed, in microseconds. Then two large calls
	// are sent to measure the cost again.
	costTime = 300_000
)

// measure records that a batch of that many hits took d. If the batch failed with err, it would
// have taken longer.
func (p *pace) measure(d time.Duration, hits int, err error) {
	if hits < largeBatchHits {
		return
	}
	if err != nil {
		d *= 2
	}
	now, before := sinceStart(), p.hitCost.Load()
	if now-p.hitCostEnd.Load() > costTime {
		before = 0
	}
	p.hitCostBefore.Store(before)
	p.hitCost.Store(d.Nanoseconds() / int64(hits))
	p.hitCostEnd.Store(now)
}

// expected returns how long a batch of that many hits will take at least, or 0 if that is
// unknown. It believes the faster one of the last two large batches, because a single batch can
// be slow by chance.
func (p *pace) expected(hits int) time.Duration {
	if hits < largeBatchHits || sinceStart()-p.hitCostEnd.Load() > costTime {
		return 0
	}
	return time.Duration(min(p.hitCost.Load(), p.hitCostBefore.Load()) * int64(hits))
}

// begin records that a batch is sent.
func (p *pace) begin() { p.inFlight.Add(1) }

// end records that a batch that took d has been answered, or has failed with err.
func (p *pace) end(d time.Duration, err error) {
	p.inFlight.Add(-1)
	now, slowest := sinceStart(), p.slowDuration.Load()
	if err != nil {
		p.lastFailure.Store(now)
		return
	}
	p.lastAnswer.Store(now)
	if d.Microseconds() >= slowest || now-p.slowEnd.Load() > slowest {
		p.slowDuration.Store(d.Microseconds())
		p.slowEnd.Store(now)
	}
}

// isStalled reports whether Redis is the cause of a wait in the queue. Either one batch took most of
// the wait, or no batch was answered.
func (p *pace) isStalled(waited time.Duration) bool {
	start := sinceStart() - waited.Microseconds()
	isAfterStart := func(t int64) bool { return t != 0 && t > start }
	if !isAfterStart(p.lastAnswer.Load()) {
		return p.inFlight.Load() > 0 || isAfterStart(p.lastFailure.Load())
	}
	return p.slowDuration.Load() >= waited.Microseconds()/2
}

// notSentError returns the error of a call that was not sent before its time was up. The cause
// is Redis if the call waited for one batch, and this process otherwise. err is the error of
// hits that were sent.
func (c *call) notSentError(err error) error {
	if !errors.Is(err, backend.ErrOverloaded) && c.queue.pace.isStalled(time.Since(c.start)) {
		return errStalled
	}
	return errExpired
}

// lateWatch watches a batch that may wait for a late answer. At the deadline of the calls, another
// worker takes the place of the worker that waits. A lateWatch belongs to one worker.
type lateWatch struct {
	timer *time.Timer
	state *atomic.Int32 // of the batch in flight
}

// The states of a batch that may become late.
const (
	batchIdle int32 = iota
	batchInTime
	batchLate // another worker has taken the place
)

// start begins to watch a batch. ctx is the context of the worker. If too many batches could be late,
// start returns false. Then the batch must not wait longer than its deadline.
func (l *lateWatch) start(ctx context.Context, q *queue, deadline time.Time) bool {
	if p := q.pool; p.lateBatches.Add(1) > p.maxLateBatches {
		p.lateBatches.Add(-1)
		return false
	}
	if l.timer == nil {
		state := new(atomic.Int32)
		l.state = state
		state.Store(batchInTime)
		l.timer = time.AfterFunc(time.Until(deadline), func() {
			if state.CompareAndSwap(batchInTime, batchLate) {
				q.replaceWorker(ctx)
			}
		})
		return true
	}
	l.state.Store(batchInTime)
	l.timer.Reset(time.Until(deadline))
	return true
}

// isLate reports whether another worker has taken the place.
func (l *lateWatch) isLate() bool { return l.state != nil && l.state.Load() == batchLate }

// end ends the watch. It reports whether the worker has kept its place.
func (l *lateWatch) end(q *queue) bool {
	q.pool.lateBatches.Add(-1)
	if !l.timer.Stop() {
		l.timer = nil // its function runs, and must not see the next batch
	}
	return l.state.CompareAndSwap(batchInTime, batchIdle)
}

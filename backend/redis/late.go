package redis

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// lateAnswerTime is how long a worker waits for an answer after the deadline of its batch. The answer
// shows which hits Redis has charged.
const lateAnswerTime = time.Second

// setLateResults sets the results of a Take after its deadline. A hit that was sent and has no answer
// gets a LateError with err. Its answer goes to this LateError later.
func (r *request) setLateResults(results []backend.Result, err error) {
	for _, c := range r.calls {
		switch {
		case c.stage.CompareAndSwap(stageQueued, stageAbandoned):
			c.setErrors(results, c.notSentError(err))
		case c.abandonSent(results, err):
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

// abandonSent abandons a call that was sent, and gives each of its hits a LateError. It returns false
// if the call has been answered meanwhile.
func (c *call) abandonSent(results []backend.Result, err error) bool {
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
		r.Allowed = r.Allowed && (!c.hits[i].allOrNone || c.answers[i].isCharged)
		late.Arrive(r)
	}
}

// pace is the recent speed of a queue's batches. It shows whether hits wait because Redis is slow, or
// because there are too many hits.
type pace struct {
	inFlight     atomic.Int64 // number of batches
	lastAnswer   atomic.Int64 // when a batch was last answered; a result of sinceStart
	lastFailure  atomic.Int64 // when a batch last failed
	slowDuration atomic.Int64 // time of the slowest recent batch, in microseconds
	slowEnd      atomic.Int64 // end of the slowest recent batch; a batch is recent for as long as it took

	hitCost       atomic.Int64 // time for each hit of the last large batch, in nanoseconds
	hitCostBefore atomic.Int64 // hitCost of the large batch before; 0 if it ended more than costTime earlier
	hitCostEnd    atomic.Int64 // end of the last large batch
}

const (
	// largeBatchHits is the least number of hits of a large batch. The time of a smaller batch
	// hardly depends on its hits.
	largeBatchHits = 64

	// costTime is how long a measured cost of a hit counts, in microseconds. After this time, the
	// next two large batches measure the cost again.
	costTime = 300_000
)

// recordCost records that a batch with this number of hits took d. If the batch failed with err, d
// counts twice, because the batch would have taken longer.
func (p *pace) recordCost(d time.Duration, hits int, err error) {
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

// expectedTime returns the least time that a batch with this number of hits will take, or 0 if no cost
// is known. It uses the faster one of the last two large batches, because a single batch can be slow
// by chance.
func (p *pace) expectedTime(hits int) time.Duration {
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

// isStalled reports whether Redis is the cause of a wait in the queue, which lasts for waitTime until
// now. Redis is the cause if one batch took at least half of the wait, or if no batch was answered.
func (p *pace) isStalled(waitTime time.Duration) bool {
	start := sinceStart() - waitTime.Microseconds()
	isAfterStart := func(t int64) bool { return t != 0 && t > start }
	if !isAfterStart(p.lastAnswer.Load()) {
		return p.inFlight.Load() > 0 || isAfterStart(p.lastFailure.Load())
	}
	return p.slowDuration.Load() >= waitTime.Microseconds()/2
}

// notSentError returns the error of a call that was not sent in time: errStalled if Redis is the cause,
// otherwise errExpired. err is the error of the Take, or nil. If err is an ErrOverloaded, this process
// is the cause.
func (c *call) notSentError(err error) error {
	if !errors.Is(err, backend.ErrOverloaded) && c.queue.pace.isStalled(time.Since(c.start)) {
		return errStalled
	}
	return errExpired
}

// lateWatch watches a batch that may wait for a late answer. At the deadline of the batch, another worker
// takes the place of the waiting worker. A lateWatch belongs to one worker.
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

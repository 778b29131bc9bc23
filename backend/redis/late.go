package redis

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// lateAnswerTime is how long a worker waits for an answer after the deadline of its batch. The answer
// shows which hits Redis has charged.
const lateAnswerTime = time.Second

// setLateResults sets the results of a Take after its deadline. A hit that was sent and has no answer
// gets a LateError with err. The late answer goes to the LateError.
func (r *request) setLateResults(results []backend.Result, err error) {
	for _, c := range r.calls {
		switch {
		case c.stage.CompareAndSwap(stageQueued, stageAbandoned):
			notSent := backend.Result{Err: c.notSentError(err)}
			for i := range c.hits {
				results[c.hits[i].index] = notSent
			}
		case c.abandonSent(results, err):
		default:
			c.copyResults(results)
		}
	}
}

// notSentError returns the error of a call that was not sent in time: errStalled if Redis is the cause,
// otherwise errExpired. err is the error of the Take, or nil. If its reason is backend.ReasonOverload,
// this process is the cause.
func (c *call) notSentError(err error) error {
	if backend.ReasonOf(err) != backend.ReasonOverload && c.queue.pace.isStalled(time.Since(c.start)) {
		return errStalled
	}
	return errExpired
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
		h := &c.hits[i]
		r := h.answer.Result
		r.Allowed = r.Allowed && (!h.InGroup() || h.answer.isCharged)
		late.Arrive(r)
	}
}

// lateWatch watches a batch that may wait for a late answer. At the deadline of the batch, another worker
// replaces the waiting worker. A lateWatch belongs to one worker.
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

// start begins to watch a batch. ctx is the context of the worker. If too many batches could be late,
// start returns false. Then the batch must not wait longer than its deadline.
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

// isLate reports whether another worker has replaced the worker of the batch.
func (l *lateWatch) isLate() bool { return l.state != nil && l.state.Load() == batchLate }

// end ends the watch. It reports whether another worker has replaced the worker of the batch.
func (l *lateWatch) end(q *partitionQueue) (replaced bool) {
	q.instance.lateBatches.Add(-1)
	if !l.timer.Stop() {
		l.timer = nil // the function of the timer runs, and must not see the next batch
	}
	return !l.state.CompareAndSwap(batchInTime, batchIdle)
}

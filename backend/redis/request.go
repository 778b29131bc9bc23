package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// request is one Take in progress. It has a call for each queue that gets hits of the Take. The Take and the workers
// share the request, and the last user recycles it.
type request struct {
	ctx          context.Context // the context of the Take; nil for a probe
	calls        []*call         // the calls; the capacity has further calls for reuse
	now          int64           // the time of the hits in microseconds since 1970; 0 means the clock of Redis
	start        time.Time
	sendDeadline time.Time // workers send no call later
	deadline     time.Time

	users       atomic.Int32  // the number of unanswered calls, plus takeWeight while the Take waits
	allAnswered chan struct{} // receives a value when all calls are answered while the Take waits
	timer       *time.Timer   // measures the wait of the Take
}

// takeWeight is what a waiting Take adds to users. It exceeds the number of calls.
const takeWeight = 1 << 30

type call struct {
	*request
	queue      *partitionQueue
	stage      atomic.Int32
	names      []byte // the names of the hits' counters in Redis, concatenated
	hits       []pendingHit
	lateErrors []*backend.LateError // an error for each hit, after the Take has abandoned the call in stageSent
}

// The stages of a call. Either the worker ends a call with stageAnswered, or the Take with stageAbandoned.
const (
	stageQueued    int32 = iota
	stageSent            // the worker has sent the call
	stageAnswered        // the worker has answered the call, and the Take uses the answers
	stageAbandoned       // the Take has stopped waiting, and ignores the answers
)

// pendingHit is a hit of a call, with its answer.
type pendingHit struct {
	backend.Hit        // without Key; N is from -limit.MaxHits to limit.MaxHits
	call               *call
	answer             answer // the Take reads the answer only in stageAnswered
	index              int    // the place of the hit in the Take
	nameStart, nameEnd int    // where the counter's name starts and ends in call.names
	windowPlace        int    // where the window's name starts in call.names; 0 without a window
	chargedWindow      int64  // the start of the window; setWindow sets it
	untilEnd           int64  // microseconds until the end of the window; setWindow sets it
	refundedHoldExpiry int64  // when the anonymous hold of this refund expires, in microseconds since 1970; 0 for other hits
}

type answer struct {
	backend.Result
	isCharged bool  // the hit is all-or-none and Redis has charged the hit
	decidedAt int64 // the time that the script used, in microseconds since 1970; 0 without the script
}

func (h *pendingHit) counterName() []byte { return h.call.names[h.nameStart:h.nameEnd] }

func (h *pendingHit) hasWindow() bool { return h.windowPlace > 0 }

// setWindow appends a window to the name of h's counter. If h names no window, it is the window that contains now, in
// microseconds since 1970. A second call of setWindow replaces the window.
func (h *pendingHit) setWindow(now int64) {
	start, end := h.Limit.WindowAt(cmp.Or(h.Window, now))
	h.nameEnd = len(h.Limit.AppendWindow(h.call.names[:h.windowPlace], start))
	h.chargedWindow, h.untilEnd = start, max(end-now, 1)
}

func (l *Limiter) newRequest(now, start time.Time, budget time.Duration) *request {
	r, ok := l.requests.Get().(*request)
	if !ok {
		r = &request{allAnswered: make(chan struct{}, 1), timer: time.NewTimer(budget)}
	}
	r.now, r.start, r.deadline = 0, start, start.Add(budget)
	r.sendDeadline = r.start.Add(budget * maxQueuePercent / 100)
	if l.options.CallersClock {
		r.now = now.UnixMicro()
	}
	return r
}

// maxQueuePercent is the part of its budget that a hit may wait in the queue. Workers send no hit that has waited longer,
// so a long queue does not look like a failure of Redis.
const maxQueuePercent = 75

// add adds n hits of h to the call for q. index is the place of h in the Take. The result is valid until the next add.
func (r *request) add(q *partitionQueue, index int, h *backend.Hit, n int64) *pendingHit {
	c := r.callOf(q)
	start := len(c.names)
	c.names = q.keyspace.append(c.names, h.Limit, h.Key)
	end, windowPlace := len(c.names), 0
	if h.Limit.Algorithm.CountsWindows() {
		windowPlace = end
		c.names = append(c.names, emptyWindow...)
	}
	pending := pendingHit{Hit: *h, call: c, index: index, nameStart: start, nameEnd: end, windowPlace: windowPlace}
	pending.Key, pending.N = nil, min(max(n, -limit.MaxHits), limit.MaxHits)
	c.hits = append(c.hits, pending)
	return &c.hits[len(c.hits)-1]
}

// hasOtherCalls reports whether the request of c has calls for other queues too.
func (c *call) hasOtherCalls() bool { return len(c.calls) > 1 }

// mayBeRefunded reports whether the charge of h is refunded if a hit in another partition denies the group.
func (h *pendingHit) mayBeRefunded() bool { return h.InGroup() && h.call.hasOtherCalls() }

func (r *request) callOf(q *partitionQueue) *call {
	for _, c := range r.calls {
		if c.queue == q {
			return c
		}
	}
	n := len(r.calls)
	if n < cap(r.calls) && r.calls[:n+1][n] != nil {
		r.calls = r.calls[:n+1]
	} else {
		r.calls = append(r.calls, &call{request: r})
	}
	c := r.calls[n]
	c.queue, c.names, c.hits, c.lateErrors = q, c.names[:0], c.hits[:0], nil
	c.stage.Store(stageQueued)
	return c
}

func (r *request) send() {
	r.users.Store(int32(len(r.calls)) + takeWeight)
	for _, c := range r.calls {
		if err := c.queue.push(c); err != nil {
			c.fail(err)
			c.finish()
		}
	}
}

func (c *call) fail(err error) {
	for i := range c.hits {
		c.hits[i].answer = answer{Result: backend.Result{Err: err}}
	}
}

// finish ends an answered call, or delivers late answers if the Take has abandoned the call. After the last call of a
// request, it wakes the Take, or recycles an abandoned request.
func (c *call) finish() {
	if !c.stage.CompareAndSwap(stageSent, stageAnswered) && !c.stage.CompareAndSwap(stageQueued, stageAnswered) {
		c.deliverLate()
	}
	switch c.users.Add(-1) {
	case takeWeight:
		c.allAnswered <- struct{}{}
	case 0:
		c.queue.limiter.recycle(c.request)
	}
}

var (
	errLate    = &backend.Error{Reason: backend.ReasonLate}
	errStarved = &backend.Error{Reason: backend.ReasonOverload, Cause: errors.New("redis: this process got no CPU time")}
)

const (
	// starvedDelay is the longest normal delay after a deadline. After a longer delay, this process got no CPU
	// time, and the socket may already have the answer of Redis.
	starvedDelay = 10 * time.Millisecond

	// starvedGrace is the further wait of a Take in a process that got no CPU time.
	starvedGrace = 10 * time.Millisecond
)

// isStarved reports whether the process noticed late that a deadline has passed.
func isStarved(deadline time.Time) bool { return time.Since(deadline) > starvedDelay }

// isStarvedAfterYield yields once, and then does what isStarved does. With many busy goroutines, the yield takes long, and
// the goroutines that read the answers of Redis wait just as long.
func isStarvedAfterYield(deadline time.Time) bool {
	if !isStarved(deadline) {
		runtime.Gosched()
	}
	return isStarved(deadline)
}

// wait returns nil once all calls are answered. After the deadline it returns errLate. If the process got no CPU time, it
// first waits for starvedGrace, and then returns errStarved. If ctx ends, it returns another error. After an error, the
// caller calls abandon.
func (r *request) wait(ctx context.Context) error {
	err := r.waitFor(ctx, time.Until(r.deadline))
	if !errors.Is(err, errLate) || !isStarvedAfterYield(r.deadline) {
		return err
	}
	if err = r.waitFor(ctx, starvedGrace); errors.Is(err, errLate) {
		return errStarved
	}
	return err
}

func (r *request) waitFor(ctx context.Context, d time.Duration) error {
	r.timer.Reset(d)
	defer r.timer.Stop()
	select {
	case <-r.allAnswered:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("redis: waiting for the answer: %w", context.Cause(ctx))
	case <-r.timer.C:
		return errLate
	}
}

// copyResults copies the answers to results. All calls must be answered.
func (r *request) copyResults(results []backend.Result) {
	for _, c := range r.calls {
		c.copyResults(results)
	}
}

func (c *call) copyResults(results []backend.Result) {
	for i := range c.hits {
		h := &c.hits[i]
		results[h.index] = h.answer.Result
		results[h.index].Window = h.chargedWindow
	}
}

// abandon ends the wait of a Take before all calls are answered. Workers then don't send the calls in their queues.
func (r *request) abandon(l *Limiter) {
	for _, c := range r.calls {
		c.stage.CompareAndSwap(stageQueued, stageAbandoned)
	}
	if r.users.Add(-takeWeight) == 0 { // meanwhile, the last answer has come
		<-r.allAnswered
		l.recycle(r)
	}
}

const maxRecycledHits = 256

func (l *Limiter) recycle(r *request) {
	for _, c := range r.calls {
		if cap(c.hits) > maxRecycledHits {
			return
		}
	}
	r.calls = r.calls[:0]
	r.ctx = nil
	l.requests.Put(r)
}

// lateAnswerTime is how long a worker waits for an answer after the deadline of its batch.
const lateAnswerTime = time.Second

// setLateResults sets the results of a Take after its deadline. A hit that was sent and has no answer gets a
// LateError with err.
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

// notSentError returns the error of a call that was not sent in time: errStalled if Redis is the cause, otherwise
// errExpired. err is the error of the Take, or nil.
func (c *call) notSentError(err error) error {
	if backend.ReasonOf(err) != backend.ReasonOverload && c.queue.pace.isStalled(time.Since(c.start)) {
		return errStalled
	}
	return errExpired
}

// abandonSent abandons a call that was sent, and gives each of its hits a LateError. It returns false if the call has
// been answered meanwhile.
func (c *call) abandonSent(results []backend.Result, err error) bool {
	c.lateErrors = make([]*backend.LateError, len(c.hits))
	for i := range c.lateErrors {
		c.lateErrors[i] = backend.NewLateError(err)
	}
	if !c.stage.CompareAndSwap(stageSent, stageAbandoned) {
		return false
	}
	for i, lateError := range c.lateErrors {
		results[c.hits[i].index] = backend.Result{Err: lateError}
	}
	return true
}

// deliverLate passes the answers to the LateErrors of the hits. To an all-or-none hit that was not charged, it passes a
// denial.
func (c *call) deliverLate() {
	for i, lateError := range c.lateErrors {
		h := &c.hits[i]
		r := h.answer.Result
		r.Allowed = r.Allowed && (!h.InGroup() || h.answer.isCharged)
		lateError.Arrive(r)
	}
}

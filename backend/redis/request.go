package redis

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// request is one Take in progress. A request has a call for each queue of its hits. The waiting
// Take and the workers share the request. The last release recycles the request.
type request struct {
	ctx      context.Context // of the Take; nil without a Tracer
	calls    []*call         // one for each queue; the capacity has further calls for reuse
	now      int64           // microseconds since 1970; 0 for the clock of Redis
	start    time.Time
	sendBy   time.Time // calls that are queued longer are not sent
	deadline time.Time

	refs        atomic.Int32  // unanswered calls, plus callerRef while the Take waits
	isAbandoned atomic.Bool   // the Take does not wait any more
	allAnswered chan struct{} // receives a value when all calls are answered while the Take waits
	timer       *time.Timer
}

// callerRef is the waiting Take's share of refs. It is more than the number of calls.
const callerRef = 1 << 30

// call is the part of a request that goes to one queue.
type call struct {
	*request
	queue      *queue
	stage      atomic.Int32
	names      []byte // the names of the hits' counters in Redis, one after the other
	hits       []pendingHit
	answers    []answer             // of the hits; the Take reads them only in stageAnswered
	lateErrors []*backend.LateError // of the hits, if the Take has abandoned the call in stageSent
}

// The stages of a call. Either the worker ends a call with stageAnswered, or the Take ends it with
// stageAbandoned. A compare-and-swap decides which one came first.
const (
	stageQueued    int32 = iota
	stageSent            // by the worker
	stageAnswered        // by the worker; the Take uses the answers
	stageAbandoned       // by the Take, which uses no answer of the call
)

// pendingHit is a hit of a call.
type pendingHit struct {
	index              int   // place of the hit in the Take
	nameStart, nameEnd int   // the place of its counter's name in names
	windowPlace        int   // the place in names where the window's name starts; 0 without a window
	callerWindow       int64 // the window that the caller names, see backend.Hit.Window; 0 for the current window
	window             int64 // start of the window; set by setWindow
	untilEnd           int64 // microseconds until the window ends; set by setWindow
	limit              *limit.Limit
	n                  int64
	holdID             string // see backend.Hit.HoldID
	refundedHoldExpiry int64  // expiry of the anonymous hold that this refund ends, in microseconds since 1970, or 0
	allOrNone          bool
}

type answer struct {
	backend.Result
	isCharged bool  // the hit is all-or-none and Redis has charged it
	decidedAt int64 // the script's time, in microseconds since 1970; 0 without a script
}

func (c *call) counterName(i int) []byte { return c.names[c.hits[i].nameStart:c.hits[i].nameEnd] }

// hasWindow reports whether the name of h's counter contains a window.
func (h *pendingHit) hasWindow() bool { return h.windowPlace > 0 }

// setWindow completes the counter's name of hit i with the window that contains the time now, in
// microseconds since 1970. If the caller has named a window, setWindow uses the caller's window. A
// second call replaces the window.
func (c *call) setWindow(i int, now int64) {
	h := &c.hits[i]
	var end int64
	h.window, end = h.limit.WindowAt(now)
	if h.callerWindow != 0 {
		h.window, end = h.limit.WindowAt(h.callerWindow)
	}
	h.nameEnd = len(appendWindow(c.names[:h.windowPlace], h.limit, h.window))
	h.untilEnd = max(end-now, 1)
}

// newRequest returns an empty request whose deadline is start + budget.
func (l *Limiter) newRequest(now, start time.Time, budget time.Duration) *request {
	r, ok := l.requests.Get().(*request)
	if !ok {
		r = &request{allAnswered: make(chan struct{}, 1), timer: time.NewTimer(budget)}
	}
	r.now, r.start, r.deadline = 0, start, start.Add(budget)
	r.sendBy = r.start.Add(budget * maxQueuePercent / 100)
	if l.options.CallersClock {
		r.now = now.UnixMicro()
	}
	return r
}

// maxQueuePercent bounds the wait of a hit in the queue: at most this percentage of its budget. After
// this time the hit is not sent. So a long queue does not look like a failure of Redis.
const maxQueuePercent = 75

// add adds n hits of h, which is hit number index of a Take, to the call for q. The result is valid
// until the next add.
func (r *request) add(q *queue, index int, h *backend.Hit, n int64) *pendingHit {
	c := r.callOf(q)
	start := len(c.names)
	c.names = q.keyspace.append(c.names, h.Limit, h.Key)
	end, windowPlace := len(c.names), 0
	if h.Limit.Algorithm.CountsWindows() {
		windowPlace = end
		c.names = append(c.names, emptyWindow...)
	}
	c.hits = append(c.hits, pendingHit{
		index: index, nameStart: start, nameEnd: end, windowPlace: windowPlace, callerWindow: h.Window, limit: h.Limit,
		n:         min(max(n, -limit.MaxHits), limit.MaxHits),
		holdID:    h.HoldID,
		allOrNone: q.limiter.options.AllOrNone && n > 0 && h.AllOrNone(),
	})
	c.answers = append(c.answers, answer{})
	return &c.hits[len(c.hits)-1]
}

// callOf returns the request's call for q.
func (r *request) callOf(q *queue) *call {
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
	c.queue, c.names, c.hits, c.answers, c.lateErrors = q, c.names[:0], c.hits[:0], c.answers[:0], nil
	c.stage.Store(stageQueued)
	return c
}

// send pushes the calls to their queues.
func (r *request) send() {
	r.refs.Store(int32(len(r.calls)) + callerRef)
	for _, c := range r.calls {
		if err := c.queue.push(c); err != nil {
			c.fail(err)
			c.stage.Store(stageAnswered)
			c.release()
		}
	}
}

// fail answers all hits of the call with err.
func (c *call) fail(err error) {
	for i := range c.answers {
		c.answers[i] = answer{Result: backend.Result{Err: err}}
	}
}

// finish moves the call to stageAnswered, and releases the call. If the Take has already abandoned the
// call, finish delivers the answers as late answers.
func (c *call) finish() {
	if !c.stage.CompareAndSwap(stageSent, stageAnswered) && !c.stage.CompareAndSwap(stageQueued, stageAnswered) {
		c.deliverLate()
	}
	c.release()
}

// release is called by the worker when it needs an answered call no longer. The last release of a request
// wakes the Take, or recycles an abandoned request.
func (c *call) release() {
	switch c.refs.Add(-1) {
	case callerRef:
		c.allAnswered <- struct{}{}
	case 0:
		c.queue.limiter.recycle(c.request)
	}
}

var (
	errLate    = fmt.Errorf("redis: %w: %w", backend.ErrLate, backend.ErrUnavailable)
	errStarved = fmt.Errorf("redis: this process got no CPU time: %w: %w", backend.ErrOverloaded, errLate)
)

// starvedAfter bounds the normal delay after a deadline. If a deadline is noticed later, this process got
// no CPU time. The answer of Redis may then wait in its socket.
const starvedAfter = 10 * time.Millisecond

// starvedGrace is the further wait of a Take in a process that got no CPU time. Redis has usually
// charged the hits then, so their answer is worth the wait.
const starvedGrace = 10 * time.Millisecond

// isStarved reports whether a deadline that has passed was noticed late.
func isStarved(deadline time.Time) bool { return time.Since(deadline) > starvedAfter }

// isStarvedAfterYield yields once, then reports whether a deadline that has passed was noticed late. In a
// process with many busy goroutines, the yield takes long. The goroutines that talk to Redis then wait
// just as long for their turn.
func isStarvedAfterYield(deadline time.Time) bool {
	if !isStarved(deadline) {
		runtime.Gosched()
	}
	return isStarved(deadline)
}

// wait returns nil once all calls are answered. After the deadline, wait returns an ErrLate. In a process
// that got no CPU time, wait first waits for starvedGrace. If ctx ends, wait returns another error. After
// an error, the caller must call abandon.
func (r *request) wait(ctx context.Context) error {
	r.timer.Reset(time.Until(r.deadline))
	defer r.timer.Stop()
	select {
	case <-r.allAnswered:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("redis: waiting for the answer: %w", context.Cause(ctx))
	case <-r.timer.C:
	}
	if !isStarvedAfterYield(r.deadline) {
		return errLate
	}
	// The worker that has the answer also got no CPU time.
	r.timer.Reset(starvedGrace)
	select {
	case <-r.allAnswered:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("redis: waiting for the answer: %w", context.Cause(ctx))
	case <-r.timer.C:
		return errStarved
	}
}

// copyResults copies the answers to results. It reports whether an all-or-none hit is denied.
// All calls must be answered.
func (r *request) copyResults(results []backend.Result) (denied bool) {
	for _, c := range r.calls {
		c.copyResults(results)
		for i := range c.hits {
			denied = denied || c.hits[i].allOrNone && c.answers[i].Err == nil && !c.answers[i].Allowed
		}
	}
	return denied
}

func (c *call) copyResults(results []backend.Result) {
	for i := range c.hits {
		results[c.hits[i].index] = c.answers[i].Result
		results[c.hits[i].index].Window = c.hits[i].window
	}
}

// abandon is called by a Take that returns before all calls are answered.
func (r *request) abandon(l *Limiter) {
	r.isAbandoned.Store(true)
	if r.refs.Add(-callerRef) == 0 { // the last answer came just now
		<-r.allAnswered
		l.recycle(r)
	}
}

// maxRecycledHits bounds the hits of a call whose memory is reused.
const maxRecycledHits = 256

func (l *Limiter) recycle(r *request) {
	for _, c := range r.calls {
		if cap(c.hits) > maxRecycledHits {
			return
		}
	}
	r.calls = r.calls[:0]
	r.ctx = nil
	r.isAbandoned.Store(false)
	l.requests.Put(r)
}

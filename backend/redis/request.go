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
	calls    []*call         // in use; the capacity holds calls for reuse
	now      int64           // microseconds; 0 for the clock of Redis
	start    time.Time
	sendBy   time.Time // calls that are still queued then are not sent
	deadline time.Time

	refs      atomic.Int32  // unanswered calls, plus callerRef while the Take waits
	abandoned atomic.Bool   // the Take does not wait any more
	done      chan struct{} // receives when all calls are answered while the Take waits
	timer     *time.Timer
}

// callerRef is the waiting Take's share of refs. It is more than the number of calls.
const callerRef = 1 << 30

// call is the part of a request that goes to one queue.
type call struct {
	*request
	queue      *queue
	stage      atomic.Int32
	names      []byte // the keys of the hits, one after the other
	hits       []pendingHit
	answers    []answer             // of the hits; only stageAnswered makes them readable
	lateErrors []*backend.LateError // of the hits, if the Take has given up a call that was sent
}

// The stages of a call. The Take and the worker compete for the last change.
const (
	stageQueued    int32 = iota
	stageSent            // by the worker
	stageAnswered        // by the worker; the Take uses the answers
	stageAbandoned       // by the Take, which uses no answer of the call
)

// pendingHit is a hit of a call.
type pendingHit struct {
	index              int   // in the Take
	nameStart, nameEnd int   // its key's place in names
	windowStart        int   // the place of the window in names; 0 without a window
	givenWindow        int64 // see backend.Hit.Window
	window             int64 // start of the window; set by setWindow
	untilEnd           int64 // microseconds until the window ends; set by setWindow
	limit              *limit.Limit
	n                  int64
	hold               string // see backend.Hit.HoldID
	refundedExpiry     int64  // of the anonymous hold that a refund is for; microseconds since 1970, or 0
	allOrNone          bool
}

type answer struct {
	backend.Result
	charged   bool  // the hit is all-or-none and was charged
	decidedAt int64 // the script's time, in microseconds since 1970; 0 without a script
}

func (c *call) name(i int) []byte { return c.names[c.hits[i].nameStart:c.hits[i].nameEnd] }

// hasWindow reports whether the key of h names a window.
func (h *pendingHit) hasWindow() bool { return h.windowStart > 0 }

// setWindow completes the name of hit i with the window that holds now (microseconds since
// 1970). A second call replaces the window.
func (c *call) setWindow(i int, now int64) {
	h := &c.hits[i]
	var end int64
	h.window, end = h.limit.WindowAt(now)
	if h.givenWindow != 0 {
		h.window, end = h.limit.WindowAt(h.givenWindow)
	}
	h.nameEnd = len(appendWindow(c.names[:h.windowStart], h.limit, h.window))
	h.untilEnd = max(end-now, 1)
}

// newRequest returns an empty request whose deadline is start + budget.
func (l *Limiter) newRequest(now, start time.Time, budget time.Duration) *request {
	r, ok := l.requests.Get().(*request)
	if !ok {
		r = &request{done: make(chan struct{}, 1), timer: time.NewTimer(budget)}
	}
	r.now, r.start, r.deadline = 0, start, start.Add(budget)
	r.sendBy = r.start.Add(budget * maxQueuePercent / 100)
	if l.options.CallersClock {
		r.now = now.UnixMicro()
	}
	return r
}

// maxQueuePercent is the part of its budget that a hit may wait in the queue. After this time the hit is
// not sent. So a long queue does not look like a failure of Redis.
const maxQueuePercent = 75

// add adds n hits of h, which is hit number index of a Take, to the call for q. The result is valid
// until the next add.
func (r *request) add(q *queue, index int, h *backend.Hit, n int64) *pendingHit {
	c := r.callOf(q)
	start := len(c.names)
	c.names = q.keyspace.append(c.names, h.Limit, h.Key)
	end, windowStart := len(c.names), 0
	if h.Limit.Algorithm.CountsWindows() {
		windowStart = end
		c.names = append(c.names, emptyWindow...)
	}
	c.hits = append(c.hits, pendingHit{
		index: index, nameStart: start, nameEnd: end, windowStart: windowStart, givenWindow: h.Window, limit: h.Limit,
		n:         min(max(n, -limit.MaxHits), limit.MaxHits),
		hold:      h.HoldID,
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

// finish ends the stages of the call, and releases the call. If the Take has abandoned a call
// that was sent, the answers are late.
func (c *call) finish() {
	if !c.stage.CompareAndSwap(stageSent, stageAnswered) && !c.stage.CompareAndSwap(stageQueued, stageAnswered) {
		c.deliverLate()
	}
	c.release()
}

// release ends the use of an answered call by its worker.
func (c *call) release() {
	switch c.refs.Add(-1) {
	case callerRef:
		c.done <- struct{}{}
	case 0:
		c.queue.limiter.recycle(c.request)
	}
}

var (
	errLate    = fmt.Errorf("redis: %w: %w", backend.ErrLate, backend.ErrUnavailable)
	errStarved = fmt.Errorf("redis: this process got no CPU time: %w: %w", backend.ErrOverloaded, errLate)
)

// starvedAfter is how late a deadline must be noticed to show that this process got no CPU
// time. The answer of Redis may then wait in its socket.
const starvedAfter = 10 * time.Millisecond

// starvedGrace is how much longer a Take waits in a process that got no CPU time. The hits are
// usually charged then, so their answer is worth the wait.
const starvedGrace = 10 * time.Millisecond

// isStarved reports whether a deadline that has passed was noticed late.
func isStarved(deadline time.Time) bool { return time.Since(deadline) > starvedAfter }

// isStarvedNow lets all other goroutines have their turn, then reports whether a deadline that has passed
// was noticed late. In a process with many busy goroutines, a turn takes long. The goroutines that send
// requests and read answers wait as long.
func isStarvedNow(deadline time.Time) bool {
	if !isStarved(deadline) {
		runtime.Gosched()
	}
	return isStarved(deadline)
}

// wait returns nil once all calls are answered. If the time is up, wait returns an ErrLate. A process
// that got no CPU time waits longer. If ctx ends, wait returns another error. After an error, the
// caller must call abandon.
func (r *request) wait(ctx context.Context) error {
	r.timer.Reset(time.Until(r.deadline))
	defer r.timer.Stop()
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("redis: waiting for the answer: %w", context.Cause(ctx))
	case <-r.timer.C:
	}
	if !isStarvedNow(r.deadline) {
		return errLate
	}
	// The worker that has the answer also got no CPU time.
	r.timer.Reset(starvedGrace)
	select {
	case <-r.done:
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

// abandon ends the use of an unanswered request by its Take.
func (r *request) abandon(l *Limiter) {
	r.abandoned.Store(true)
	if r.refs.Add(-callerRef) == 0 { // the last answer came just now
		<-r.done
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
	r.abandoned.Store(false)
	l.requests.Put(r)
}

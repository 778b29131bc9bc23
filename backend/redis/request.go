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

// request is one Take in progress. It has a requestPart for each queue that gets hits of the Take. The Take and the
// workers share the request. The last of them to finish recycles the request.
type request struct {
	ctx          context.Context // the context of the Take; nil for a probe
	parts        []*requestPart  // the elements beyond the length are parts of earlier requests, for reuse
	now          int64           // the time of the hits in microseconds since 1970; 0 means the clock of Redis
	start        time.Time       // when the Take began
	sendDeadline time.Time       // after this time, workers send no part
	deadline     time.Time       // when the Take stops waiting

	users       atomic.Int32  // the number of unanswered parts, plus takeWeight while the Take waits
	allAnswered chan struct{} // receives a value when all parts are answered while the Take waits
	timer       *time.Timer   // measures the wait of the Take
}

// takeWeight is what a waiting Take adds to users. It exceeds the number of parts, so users tells whether the Take waits.
const takeWeight = 1 << 30

// requestPart has the hits of a request for one queue.
type requestPart struct {
	*request
	queue      *partitionQueue
	stage      atomic.Int32
	names      []byte // the names of the hits' counters in Redis, concatenated
	hits       []pendingHit
	lateErrors []*backend.LateError // an error for each hit; nil unless the Take has abandoned the part in stageSent
}

// The stages of a requestPart. Either the worker ends the part with stageAnswered, or the Take ends it with
// stageAbandoned.
const (
	stageQueued    int32 = iota
	stageSent            // the worker has sent the part
	stageAnswered        // the worker has answered the part, and the Take uses the answers
	stageAbandoned       // the Take has stopped waiting, and ignores the answers
)

// pendingHit is a hit of a requestPart, with its answer.
type pendingHit struct {
	backend.Hit        // without Key; N is from -limit.MaxHits to limit.MaxHits
	part               *requestPart
	answer             answer // the Take reads the answer only in stageAnswered
	index              int    // the place of the hit in the Take
	nameStart, nameEnd int    // where the counter's name starts and ends in part.names
	windowPlace        int    // where the window's name starts in part.names; 0 without a window
	chargedWindow      int64  // the start of the window; setWindow sets it
	untilEnd           int64  // microseconds until the end of the window; setWindow sets it
	refundedHoldExpiry int64  // when the anonymous hold of this refund expires, in microseconds since 1970; 0 for other hits
}

// answer is the decision about a pendingHit.
type answer struct {
	backend.Result
	isCharged bool  // the hit is all-or-none and Redis has charged the hit
	decidedAt int64 // the time that the script used, in microseconds since 1970; 0 without the script
}

func (h *pendingHit) counterName() []byte { return h.part.names[h.nameStart:h.nameEnd] }

func (h *pendingHit) hasWindow() bool { return h.windowPlace > 0 }

// setWindow appends the window of h to the name of h's counter. If h names no window, setWindow uses the window that
// contains now, which is in microseconds since 1970. A second call of setWindow replaces the window.
func (h *pendingHit) setWindow(now int64) {
	start, end := h.Limit.WindowAt(cmp.Or(h.Window, now))
	h.nameEnd = len(h.Limit.AppendWindow(h.part.names[:h.windowPlace], start))
	h.chargedWindow, h.untilEnd = start, max(end-now, 1)
}

// newRequest returns a request without hits, which began at start. It uses the memory of a recycled request.
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

// maxQueuePercent is how much of its budget a hit may wait in the queue, in percent. Workers send no hit that has waited
// longer. Otherwise its answer would come too late, and a long queue would look like a failure of Redis.
const maxQueuePercent = 75

// add adds n hits of h to the part for q. index is the place of h in the Take. The result is valid until the next add.
func (r *request) add(q *partitionQueue, index int, h *backend.Hit, n int64) *pendingHit {
	p := r.partFor(q)
	start := len(p.names)
	p.names = q.keyspace.append(p.names, h.Limit, h.Key)
	end, windowPlace := len(p.names), 0
	if h.Limit.Algorithm.CountsByWindow() {
		windowPlace = end
		p.names = append(p.names, emptyWindow...)
	}
	pending := pendingHit{Hit: *h, part: p, index: index, nameStart: start, nameEnd: end, windowPlace: windowPlace}
	pending.Key, pending.N = nil, min(max(n, -limit.MaxHits), limit.MaxHits)
	p.hits = append(p.hits, pending)
	return &p.hits[len(p.hits)-1]
}

// hasSeveralParts reports whether the request has hits for several queues.
func (r *request) hasSeveralParts() bool { return len(r.parts) > 1 }

// mayBeRefunded reports whether the charge of h is refunded if a hit in another partition denies the group.
func (h *pendingHit) mayBeRefunded() bool { return h.InGroup() && h.part.request.hasSeveralParts() }

// partFor returns the part of r for q. If r has no such part, partFor adds it.
func (r *request) partFor(q *partitionQueue) *requestPart {
	for _, p := range r.parts {
		if p.queue == q {
			return p
		}
	}
	n := len(r.parts)
	if n < cap(r.parts) && r.parts[:n+1][n] != nil {
		r.parts = r.parts[:n+1]
	} else {
		r.parts = append(r.parts, &requestPart{request: r})
	}
	p := r.parts[n]
	p.queue, p.names, p.hits, p.lateErrors = q, p.names[:0], p.hits[:0], nil
	p.stage.Store(stageQueued)
	return p
}

// send puts each part into its queue.
func (r *request) send() {
	r.users.Store(int32(len(r.parts)) + takeWeight)
	for _, p := range r.parts {
		if err := p.queue.push(p); err != nil {
			p.fail(err)
			p.finish()
		}
	}
}

func (p *requestPart) fail(err error) {
	for i := range p.hits {
		p.hits[i].answer = answer{Result: backend.Result{Err: err}}
	}
}

// finish ends an answered part, or delivers late answers if the Take has abandoned the part. After the last part of a
// request, finish wakes the Take, or recycles an abandoned request.
func (p *requestPart) finish() {
	if !p.stage.CompareAndSwap(stageSent, stageAnswered) && !p.stage.CompareAndSwap(stageQueued, stageAnswered) {
		p.deliverLate()
	}
	switch p.users.Add(-1) {
	case takeWeight:
		p.allAnswered <- struct{}{}
	case 0:
		p.queue.limiter.recycle(p.request)
	}
}

var (
	errLate    = &backend.Error{Reason: backend.ReasonLate}
	errStarved = &backend.Error{Reason: backend.ReasonOverload, Cause: errors.New("redis: this process got no CPU time")}
)

const (
	// starvedDelay is the longest delay with which a process with enough CPU time notices a deadline. After a
	// longer delay, the socket may already have the answer of Redis.
	starvedDelay = 10 * time.Millisecond

	// starvedGrace is how much longer a Take waits in a process that got no CPU time.
	starvedGrace = 10 * time.Millisecond
)

// isStarved reports whether this process got no CPU time at the deadline, so that it noticed the deadline too late.
func isStarved(deadline time.Time) bool { return time.Since(deadline) > starvedDelay }

// isStarvedAfterYield yields once, and then does what isStarved does. With many busy goroutines, the yield takes long.
// The goroutines that read the answers of Redis wait just as long, so their answers may still come.
func isStarvedAfterYield(deadline time.Time) bool {
	if !isStarved(deadline) {
		runtime.Gosched()
	}
	return isStarved(deadline)
}

// wait returns nil once all parts are answered. After the deadline, wait returns errLate. If the process got no CPU time,
// wait first waits for starvedGrace, and then returns errStarved. If ctx ends, wait returns the cause. After an error,
// the caller calls abandon.
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

// copyResults copies the answers to results. All parts must be answered.
func (r *request) copyResults(results []backend.Result) {
	for _, p := range r.parts {
		p.copyResults(results)
	}
}

func (p *requestPart) copyResults(results []backend.Result) {
	for i := range p.hits {
		h := &p.hits[i]
		results[h.index] = h.answer.Result
		results[h.index].Window = h.chargedWindow
	}
}

// abandon ends the wait of a Take before all parts are answered. Workers then don't send the parts that are still queued.
func (r *request) abandon(l *Limiter) {
	for _, p := range r.parts {
		p.stage.CompareAndSwap(stageQueued, stageAbandoned)
	}
	if r.users.Add(-takeWeight) == 0 { // meanwhile, the last answer has come
		<-r.allAnswered
		l.recycle(r)
	}
}

// maxRecycledHits is the largest capacity for hits in a part that is reused. Larger parts would keep too much memory.
const maxRecycledHits = 256

func (l *Limiter) recycle(r *request) {
	for _, p := range r.parts {
		if cap(p.hits) > maxRecycledHits {
			return
		}
	}
	r.parts = r.parts[:0]
	r.ctx = nil
	l.requests.Put(r)
}

// lateAnswerTime is how long a worker waits for an answer after the deadline of its batch.
const lateAnswerTime = time.Second

// setLateResults sets the results of a Take after its deadline. A hit that was sent and has no answer gets a
// LateError with err.
func (r *request) setLateResults(results []backend.Result, err error) {
	for _, p := range r.parts {
		switch {
		case p.stage.CompareAndSwap(stageQueued, stageAbandoned):
			notSent := backend.Result{Err: p.notSentError(err)}
			for i := range p.hits {
				results[p.hits[i].index] = notSent
			}
		case p.abandonSent(results, err):
		default:
			p.copyResults(results)
		}
	}
}

// notSentError returns the error of a part that was not sent in time: errStalled if Redis is the cause, otherwise
// errExpired. err is the error of the Take, or nil.
func (p *requestPart) notSentError(err error) error {
	if backend.ReasonOf(err) != backend.ReasonOverload && p.queue.pace.isStalled(time.Since(p.start)) {
		return errStalled
	}
	return errExpired
}

// abandonSent abandons a part that was sent, and gives each of its hits a LateError. It returns false if the part has
// been answered meanwhile.
func (p *requestPart) abandonSent(results []backend.Result, err error) bool {
	p.lateErrors = make([]*backend.LateError, len(p.hits))
	for i := range p.lateErrors {
		p.lateErrors[i] = backend.NewLateError(err)
	}
	if !p.stage.CompareAndSwap(stageSent, stageAbandoned) {
		return false
	}
	for i, lateError := range p.lateErrors {
		results[p.hits[i].index] = backend.Result{Err: lateError}
	}
	return true
}

// deliverLate passes the answers to the LateErrors of the hits. An all-or-none hit that was not charged gets a denial.
func (p *requestPart) deliverLate() {
	for i, lateError := range p.lateErrors {
		h := &p.hits[i]
		r := h.answer.Result
		r.Allowed = r.Allowed && (!h.InGroup() || h.answer.isCharged)
		lateError.Arrive(r)
	}
}

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
// workers share the request, and the last user of the request recycles it.
type request struct {
	ctx          context.Context // the context of the Take; nil for a probe
	parts        []*requestPart  // the elements beyond the length are parts of earlier requests, for reuse
	now          int64           // the time of the hits in microseconds since 1970; 0 means the clock of Redis
	start        time.Time       // when the Take began
	sendDeadline time.Time       // after this time, workers send no part
	deadline     time.Time       // when the Take stops waiting

	userCount   atomic.Int32  // the number of unanswered parts, plus takeWeight while the Take waits
	allAnswered chan struct{} // receives a value when all parts are answered while the Take waits
	timer       *time.Timer   // measures the wait of the Take
}

// takeWeight is the number that a waiting Take adds to userCount. It exceeds the number of parts, so a userCount of
// takeWeight or more means that the Take waits.
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
	index              int    // the index of the hit in the Take
	nameStart, nameEnd int    // where the counter's name starts and ends in part.names
	windowNameStart    int    // where the window's name starts in part.names; 0 without a window
	windowStart        int64  // as backend.Hit.WindowStart; setWindow sets it
	microsToWindowEnd  int64  // at least 1; setWindow sets it
	refundedHoldExpiry int64  // when the anonymous hold of this refund expires, in microseconds since 1970; 0 for other hits
}

type answer struct {
	backend.Result
	isCharged bool  // Redis has charged the hit; only for all-or-none hits
	decidedAt int64 // the time that the script used, in microseconds since 1970; 0 without the script
}

func (h *pendingHit) counterName() []byte { return h.part.names[h.nameStart:h.nameEnd] }

func (h *pendingHit) hasWindow() bool { return h.windowNameStart > 0 }

// setWindow appends the window of h to the name of h's counter. If h names no window, setWindow uses the window that
// contains now, which is in microseconds since 1970. A second call of setWindow replaces the window.
func (h *pendingHit) setWindow(now int64) {
	start, end := h.Limit.WindowAt(cmp.Or(h.WindowStart, now))
	h.nameEnd = len(h.Limit.AppendWindow(h.part.names[:h.windowNameStart], start))
	h.windowStart, h.microsToWindowEnd = start, max(end-now, 1)
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

// maxQueuePercent is the part of its budget that a hit may wait in the queue, in percent. After a longer wait, workers
// don't send the hit, because a late answer would look like a failure of Redis.
const maxQueuePercent = 75

// add adds n hits of h to the part for q. index is the place of h in the Take. The result is valid until the next add.
func (r *request) add(q *partitionQueue, index int, h *backend.Hit, n int64) *pendingHit {
	p := r.findOrAddPart(q)
	start := len(p.names)
	p.names = q.keyspace.append(p.names, h.Limit, h.Key)
	end, windowNameStart := len(p.names), 0
	if h.Limit.Algorithm.CountsByWindow() {
		windowNameStart = end
		p.names = append(p.names, emptyWindow...)
	}
	newHit := pendingHit{Hit: *h, part: p, index: index, nameStart: start, nameEnd: end, windowNameStart: windowNameStart}
	newHit.Key, newHit.N = nil, min(max(n, -limit.MaxHits), limit.MaxHits)
	p.hits = append(p.hits, newHit)
	return &p.hits[len(p.hits)-1]
}

func (r *request) hasSeveralParts() bool { return len(r.parts) > 1 }

// mayBeRefunded reports whether the Take refunds the charge of h if a hit in another partition denies the group.
func (h *pendingHit) mayBeRefunded() bool { return h.IsInGroup() && h.part.request.hasSeveralParts() }

func (r *request) findOrAddPart(q *partitionQueue) *requestPart {
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

func (r *request) send() {
	r.userCount.Store(int32(len(r.parts)) + takeWeight)
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

// finish ends a part whose hits have answers. If the Take has abandoned the part, finish delivers the answers late. After
// the last part of a request, finish wakes the Take, or recycles the request if no Take waits.
func (p *requestPart) finish() {
	if !p.stage.CompareAndSwap(stageSent, stageAnswered) && !p.stage.CompareAndSwap(stageQueued, stageAnswered) {
		p.deliverLateAnswers()
	}
	switch p.userCount.Add(-1) {
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

// A process with enough CPU time notices a deadline within starvedDelay. Another process may not have read the answer of
// Redis yet, so its Takes wait for starvedGrace after their deadline.
const starvedDelay, starvedGrace = 10 * time.Millisecond, 10 * time.Millisecond

// isStarved reports whether this process got no CPU time at the deadline, so that it noticed the deadline too late.
func isStarved(deadline time.Time) bool { return time.Since(deadline) > starvedDelay }

// isStarvedAfterYield lets other goroutines run once, and then returns isStarved. If many goroutines are busy, they run for
// a long time, and the goroutines that read the answers of Redis get no CPU time either.
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
	err := r.waitAtMost(ctx, time.Until(r.deadline))
	if !errors.Is(err, errLate) || !isStarvedAfterYield(r.deadline) {
		return err
	}
	if err = r.waitAtMost(ctx, starvedGrace); errors.Is(err, errLate) {
		return errStarved
	}
	return err
}

func (r *request) waitAtMost(ctx context.Context, maxWait time.Duration) error {
	r.timer.Reset(maxWait)
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

// copyResults copies the answers to results. The part must be answered.
func (p *requestPart) copyResults(results []backend.Result) {
	for i := range p.hits {
		h := &p.hits[i]
		results[h.index] = h.answer.Result
		results[h.index].WindowStart = h.windowStart
	}
}

// abandon ends the wait of a Take before all parts are answered. Workers then don't send the parts that are still queued.
func (r *request) abandon(l *Limiter) {
	for _, p := range r.parts {
		p.stage.CompareAndSwap(stageQueued, stageAbandoned)
	}
	if r.userCount.Add(-takeWeight) == 0 { // meanwhile, the last answer has come
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

// lateAnswerTime is the time that a worker waits for an answer after the deadline of its batch.
const lateAnswerTime = time.Second

// setLateResults sets the results of a Take after its deadline. A hit that was sent and has no answer gets a
// LateError with err.
func (r *request) setLateResults(results []backend.Result, err error) {
	for _, p := range r.parts {
		switch {
		case p.stage.CompareAndSwap(stageQueued, stageAbandoned):
			unsentResult := backend.Result{Err: p.notSentError(err)}
			for i := range p.hits {
				results[p.hits[i].index] = unsentResult
			}
		case p.abandonSentPart(results, err):
		default:
			p.copyResults(results)
		}
	}
}

// notSentError returns the error of a part that was not sent in time: errStalled if Redis is the cause, otherwise
// errExpired. err is the error of the Take, or nil.
func (p *requestPart) notSentError(err error) error {
	isOverloaded := backend.ReasonOf(err) == backend.ReasonOverload
	if !isOverloaded && p.queue.timing.isStalled(time.Since(p.start)) {
		return errStalled
	}
	return errExpired
}

// abandonSentPart abandons a part that was sent, and sets a LateError as the result of each hit. If the part has an
// answer, abandonSentPart changes nothing and returns false.
func (p *requestPart) abandonSentPart(results []backend.Result, err error) bool {
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

// deliverLateAnswers passes the answer of each hit to its LateError. All-or-none hits that were not charged get denials.
func (p *requestPart) deliverLateAnswers() {
	for i, lateError := range p.lateErrors {
		h := &p.hits[i]
		r := h.answer.Result
		r.Allowed = r.Allowed && (!h.IsInGroup() || h.answer.isCharged)
		lateError.SetAnswer(r)
	}
}

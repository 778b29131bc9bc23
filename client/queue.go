package client

import (
	"container/list"
	"math"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Bounds of the calls of a queue.
const (
	maxBatchWaiters    = 64                    // waiters that share a call
	firstOutagePause   = 50 * time.Millisecond // between calls while the service fails
	longestOutagePause = 5 * time.Second
	firstSlotPause     = 20 * time.Millisecond // between calls for a slot of a concurrency limit
	longestSlotPause   = time.Second
	longestJitter      = time.Second
	shortestJitter     = time.Millisecond
)

// queue has the callers that wait for permits of one request, in the order of their calls. Its
// goroutine asks for the permits of the first waiters until the queue is empty. client.mu
// guards the fields.
type queue struct {
	client  *Client
	key     string
	request *Request // N is not used
	isHold  bool     // the waiters want holds, and each has a hold id
	waiters list.List
	wakeUps chan struct{} // a signal ends a pause of the goroutine
	reset   *limitReset   // nil unless the goroutine waits for permits
}

// limitReset is when a limit has permits again.
type limitReset struct {
	at     time.Time
	max    uint32        // permits in a window
	window time.Duration // 0 if it is not known
}

// waiter is a caller in a queue.
type waiter struct {
	permits   int
	holdID    string
	deadline  time.Time // zero for none
	element   *list.Element
	done      chan error // gets the result, nil for granted permits
	grant     grant      // valid after a nil in done
	outageErr error      // of the service
}

// grant is what a waiter needs to know to give its permits back.
type grant struct {
	calledAt   time.Time // the time before the call
	resetAfter time.Duration
	holdTime   time.Duration // after which a slot is free without a renewal, or 0
	limited    bool          // a limit counts the permits
	degraded   bool
}

func newGrant(calledAt time.Time, a *answer) grant {
	return grant{
		calledAt: calledAt, resetAfter: a.resetAfter, holdTime: a.holdTime, limited: a.limited, degraded: a.degraded,
	}
}

// batchBound bounds the next batch of a queue.
type batchBound struct {
	waiters int
	permits int64
}

// oneWaiter is the bound of a batch with the first waiter only.
var oneWaiter = batchBound{waiters: 1, permits: math.MaxInt64}

// run asks for the permits of the waiters, until the queue is empty or the client is closed.
func (q *queue) run() {
	defer q.client.goroutines.Done()
	maxWaiters := maxBatchWaiters
	if q.isHold {
		maxWaiters = 1 // a call has one id
	}
	bound := oneWaiter
	outagePauses := newBackoff(firstOutagePause, longestOutagePause)
	slotPauses := newBackoff(firstSlotPause, longestSlotPause)
	for {
		batch, permits := q.nextBatch(bound)
		if batch == nil {
			return
		}
		bound = oneWaiter
		calledAt := q.client.clock.Now()
		a, err := q.client.decide(q.client.lifetime, q.request, permits, callOptions{chargesNothingIfDenied: true, holdID: batch[0].holdID})
		switch {
		case q.client.lifetime.Err() != nil:
			// nextBatch ends the waits and returns nil.
		case err != nil && isOutage(err):
			q.noteOutage(err)
			q.pause(outagePauses.NextBackOff(), nil)
			continue
		case err != nil:
			q.finishBatch(batch, err)
		case a.allowed:
			q.grantBatch(batch, newGrant(calledAt, a))
			bound = batchBound{waiters: min(2*len(batch), maxWaiters), permits: math.MaxInt64}
			if a.limited {
				bound.permits = int64(a.status.remaining)
			}
			slotPauses.Reset()
		case len(batch) > 1:
			if a.neverFits {
				maxWaiters = 1
			}
			bound = batchBound{waiters: len(batch) / 2, permits: int64(a.status.remaining)}
		case a.neverFits:
			q.finishBatch(batch, newWeightError(permits, a))
		case a.holdTime > 0: // only slots are missing, and a holder can release its slot at any time
			q.pause(min(slotPauses.NextBackOff(), max(a.retryAfter, firstSlotPause)), nil)
		default:
			q.pause(a.retryAfter+jitter(a.retryAfter), &limitReset{at: calledAt.Add(a.retryAfter), max: a.status.max, window: a.status.window})
		}
		outagePauses.Reset()
	}
}

func newBackoff(first, longest time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier = first, longest, 2
	b.Reset()
	return b
}

// jitter returns a random delay: up to 5 % of wait and a millisecond, but at most a second. Without
// the delay, all processes that wait for the same reset would call at the same moment.
func jitter(wait time.Duration) time.Duration {
	return rand.N(min(shortestJitter+wait/20, longestJitter))
}

// nextBatch returns the first waiters and the sum of their permits, within bound. The batch always
// has the first waiter, even if this waiter needs more permits than bound has. If the queue is empty
// or the client is closed, nextBatch returns nil and removes the queue.
func (q *queue) nextBatch(bound batchBound) (batch []*waiter, permits int) {
	c := q.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		for e := q.waiters.Front(); e != nil; e = q.waiters.Front() {
			q.finishWaiter(e.Value.(*waiter), ErrClosed)
		}
	}
	for e := q.waiters.Front(); e != nil; e = e.Next() {
		w := e.Value.(*waiter)
		if len(batch) > 0 && (len(batch) == bound.waiters || int64(permits+w.permits) > bound.permits) {
			break
		}
		batch, permits = append(batch, w), permits+w.permits
	}
	if batch == nil {
		delete(c.queues, q.key)
	}
	select {
	case <-q.wakeUps: // the next call sees what this signal is about
	default:
	}
	return batch, permits
}

// grantBatch gives the permits of a batch to its waiters. The permits of waiters that have left
// are refunded.
func (q *queue) grantBatch(batch []*waiter, g grant) {
	unused := 0
	q.client.mu.Lock()
	for _, w := range batch {
		if w.element == nil {
			unused += w.permits
			continue
		}
		w.grant = g
		q.finishWaiter(w, nil)
	}
	q.client.mu.Unlock()
	if unused > 0 {
		r := *q.request
		r.N = unused
		q.client.refund(&r, batch[0].holdID, g)
	}
}

// finishBatch ends the wait of a batch with err.
func (q *queue) finishBatch(batch []*waiter, err error) {
	q.client.mu.Lock()
	defer q.client.mu.Unlock()
	for _, w := range batch {
		if w.element != nil {
			q.finishWaiter(w, err)
		}
	}
}

// finishWaiter ends the wait of w. The caller holds client.mu.
func (q *queue) finishWaiter(w *waiter, err error) {
	q.waiters.Remove(w.element)
	w.element = nil
	w.done <- err
}

// noteOutage logs err and keeps it for waiters that give up during the outage.
func (q *queue) noteOutage(err error) {
	q.client.log.Warn("rls failed", "error", err)
	q.client.mu.Lock()
	defer q.client.mu.Unlock()
	for e := q.waiters.Front(); e != nil; e = e.Next() {
		e.Value.(*waiter).outageErr = err
	}
}

// pause waits for d, or until endPause. reset is when there are permits, or nil if this time is not
// known. pause rejects late waiters. If the first waiter is rejected, pause returns at once, because
// the next waiter may need fewer permits.
func (q *queue) pause(d time.Duration, reset *limitReset) {
	c := q.client
	c.mu.Lock()
	q.reset = reset
	first := q.waiters.Front()
	q.rejectLateWaiters()
	if first == nil || q.waiters.Front() != first {
		q.reset = nil
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	timer, stop := c.clock.NewTimer(d)
	defer stop()
	select {
	case <-timer:
	case <-q.wakeUps:
	case <-c.lifetime.Done():
	}
	c.mu.Lock()
	q.reset = nil
	c.mu.Unlock()
}

// rejectLateWaiters ends the wait of the waiters whose permits come after their deadline. If it
// rejects the first waiter, it rejects no other waiter, because q.reset is the time for the permits
// of the first waiter. The caller holds client.mu.
func (q *queue) rejectLateWaiters() {
	if q.reset == nil {
		return
	}
	now := q.client.clock.Now()
	untilReset := q.reset.at.Sub(now)
	var firstPermits, permitsAhead int64 // of the first waiter, and of all waiters before w
	for e := q.waiters.Front(); e != nil; {
		w := e.Value.(*waiter)
		e = e.Next()
		permits := int64(w.permits)
		if permitsAhead == 0 {
			firstPermits = permits
		}
		wait := untilReset
		if q.reset.max > 0 {
			// The first waiter gets its permits at the reset. The waiters behind it get at most max
			// permits in each window.
			wait = addWindows(wait, (permitsAhead+permits-firstPermits)/int64(q.reset.max), q.reset.window)
		}
		if !w.deadline.IsZero() && w.deadline.Sub(now) < wait {
			q.finishWaiter(w, &WaitError{wait})
			if permitsAhead == 0 {
				return
			}
			continue
		}
		permitsAhead += permits
	}
}

// addWindows returns wait and n windows. The result is the longest Duration if the sum is longer.
func addWindows(wait time.Duration, n int64, window time.Duration) time.Duration {
	const longest = time.Duration(math.MaxInt64)
	if window > 0 && n > int64((longest-max(wait, 0))/window) {
		return longest
	}
	return wait + time.Duration(n)*window
}

// endPause ends a pause of the goroutine.
func (q *queue) endPause() {
	select {
	case q.wakeUps <- struct{}{}:
	default: // the goroutine has a signal already
	}
}

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
	maxBatch       = 64                    // waiters that share a call
	firstRetry     = 50 * time.Millisecond // after an outage of the service
	longestRetry   = 5 * time.Second
	firstPoll      = 20 * time.Millisecond // of a slot of a concurrency limit
	longestPoll    = time.Second
	longestJitter  = time.Second
	shortestJitter = time.Millisecond
)

// queue has the callers that wait for permits of one request, in the order of their calls. One
// goroutine asks for the permits of the first waiters until the queue is empty. client.mu
// guards the fields.
type queue struct {
	client  *Client
	key     string
	request *Request // N is not used
	isHold  bool     // each waiter has a hold id
	waiters list.List
	wake    chan struct{} // ends a pause of the goroutine
	reset   *nextPermits  // nil unless the goroutine waits for permits
}

// nextPermits is when a limit has permits again.
type nextPermits struct {
	at     time.Time
	max    uint32        // permits in a window
	window time.Duration // 0 if it is not known
}

// waiter is a caller in a queue.
type waiter struct {
	n        int
	holdID   string
	deadline time.Time // zero for none
	element  *list.Element
	done     chan error // gets the result, nil for granted permits
	grant    grant      // valid after a nil in done
	lastErr  error      // of the service
}

// grant is what a waiter needs to know to give its permits back.
type grant struct {
	at         time.Time // before the call
	resetAfter time.Duration
	hold       time.Duration // of a slot of a concurrency limit, or 0
	limited    bool          // a limit counts the permits
	degraded   bool
}

// batchBound bounds the next batch of a queue.
type batchBound struct {
	waiters int
	permits int64
}

// run asks for the permits of the waiters, until the queue is empty or the client is closed.
func (q *queue) run() {
	defer q.client.work.Done()
	largest := maxBatch
	if q.isHold {
		largest = 1 // a call has one id
	}
	bound := batchBound{1, math.MaxInt64}
	retry := newBackoff(firstRetry, longestRetry)
	poll := newBackoff(firstPoll, longestPoll)
	for {
		batch, permits := q.nextBatch(bound)
		if batch == nil {
			return
		}
		bound = batchBound{1, math.MaxInt64}
		at := q.client.clock.Now()
		a, err := q.client.decide(q.client.life, q.request, permits, callOptions{freeIfDenied: true, holdID: batch[0].holdID})
		switch {
		case q.client.life.Err() != nil:
			// The next batch is empty.
		case err != nil && isOutage(err):
			q.noteOutage(err)
			q.pause(retry.NextBackOff(), nil)
			continue
		case err != nil:
			q.finish(batch, err)
		case a.allowed:
			q.grant(batch, grant{at, a.resetAfter, a.hold, a.limited, a.degraded})
			bound = batchBound{min(2*len(batch), largest), math.MaxInt64}
			if a.limited {
				bound.permits = int64(a.status.remaining)
			}
			poll.Reset()
		case len(batch) > 1:
			if a.never {
				largest = 1
			}
			bound = batchBound{len(batch) / 2, int64(a.status.remaining)}
		case a.never:
			q.finish(batch, newWeightError(permits, a))
		case a.hold > 0: // a holder can release its slot at any time
			q.pause(min(poll.NextBackOff(), max(a.retryAfter, firstPoll)), nil)
		default:
			q.pause(a.retryAfter+jitter(a.retryAfter), &nextPermits{at.Add(a.retryAfter), a.status.max, a.status.window})
		}
		retry.Reset()
	}
}

func newBackoff(first, longest time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier = first, longest, 2
	b.Reset()
	return b
}

// jitter returns a random time by which a process comes later than others that wait for the
// same reset.
func jitter(wait time.Duration) time.Duration {
	return rand.N(min(shortestJitter+wait/20, longestJitter))
}

// nextBatch returns the first waiters and the sum of their permits, within bound. It always has
// the first waiter. If the queue is empty or the client is closed, it returns nil and removes
// the queue.
func (q *queue) nextBatch(bound batchBound) (batch []*waiter, permits int) {
	c := q.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		for e := q.waiters.Front(); e != nil; e = q.waiters.Front() {
			q.finishOne(e.Value.(*waiter), ErrClosed)
		}
	}
	for e := q.waiters.Front(); e != nil; e = e.Next() {
		w := e.Value.(*waiter)
		if len(batch) > 0 && (len(batch) == bound.waiters || int64(permits+w.n) > bound.permits) {
			break
		}
		batch, permits = append(batch, w), permits+w.n
	}
	if batch == nil {
		delete(c.queues, q.key)
	}
	return batch, permits
}

// grant gives the permits of a batch to its waiters. The permits of waiters that have left
// are refunded.
func (q *queue) grant(batch []*waiter, g grant) {
	unused := 0
	q.client.mu.Lock()
	for _, w := range batch {
		if w.element == nil {
			unused += w.n
			continue
		}
		w.grant = g
		q.finishOne(w, nil)
	}
	q.client.mu.Unlock()
	if unused > 0 {
		r := *q.request
		r.N = unused
		q.client.refund(&r, batch[0].holdID, g)
	}
}

// finish ends the wait of a batch with err.
func (q *queue) finish(batch []*waiter, err error) {
	q.client.mu.Lock()
	defer q.client.mu.Unlock()
	for _, w := range batch {
		if w.element != nil {
			q.finishOne(w, err)
		}
	}
}

// finishOne ends the wait of w. The caller holds client.mu.
func (q *queue) finishOne(w *waiter, err error) {
	q.waiters.Remove(w.element)
	w.element = nil
	w.done <- err
}

// noteOutage keeps err for waiters that give up during the outage.
func (q *queue) noteOutage(err error) {
	q.client.log.Warn("rls failed", "error", err)
	q.client.mu.Lock()
	defer q.client.mu.Unlock()
	for e := q.waiters.Front(); e != nil; e = e.Next() {
		e.Value.(*waiter).lastErr = err
	}
}

// pause waits for d, or until the first waiter changes. reset says when there are permits,
// or is nil if nobody knows. A waiter gives up if its deadline is earlier than its permits. If the
// first waiter gives up, pause returns, because the next one may need fewer permits.
func (q *queue) pause(d time.Duration, reset *nextPermits) {
	c := q.client
	c.mu.Lock()
	q.reset = reset
	first := q.waiters.Front()
	q.dropLate()
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
	case <-q.wake:
	case <-c.life.Done():
	}
	c.mu.Lock()
	q.reset = nil
	c.mu.Unlock()
}

// dropLate ends the wait of the waiters whose permits come after their deadline. If this is so for
// the first waiter, the others stay, because the answer was about the first one. The caller holds
// client.mu.
func (q *queue) dropLate() {
	if q.reset == nil {
		return
	}
	untilReset := q.reset.at.Sub(q.client.clock.Now())
	first, ahead := int64(0), int64(0) // permits of the first waiter, and of all waiters before w
	for e := q.waiters.Front(); e != nil; {
		w := e.Value.(*waiter)
		e = e.Next()
		n := int64(w.n)
		if ahead == 0 {
			first = n
		}
		wait := untilReset
		if q.reset.max > 0 {
			// The first waiter gets its permits at the reset, and others at most max in a window.
			wait += time.Duration((ahead+n-first)/int64(q.reset.max)) * q.reset.window
		}
		if !w.deadline.IsZero() && time.Until(w.deadline) < wait {
			q.finishOne(w, &WaitError{wait})
			if ahead == 0 {
				return
			}
			continue
		}
		ahead += n
	}
}

// notify ends a pause of the goroutine.
func (q *queue) notify() {
	select {
	case q.wake <- struct{}{}:
	default: // the goroutine does not wait, or has a signal already
	}
}

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

// queue has the callers that wait for permits of one request, in the order of their calls. Its goroutine asks for
// the permits of the first of them. client.mu guards the fields.
type queue struct {
	client  *Client
	key     string
	request *Request // N is not used
	isHold  bool     // the waiters want holds, and each has a hold id
	waiters list.List
	wakeUps chan struct{} // a signal ends a pause of the goroutine
	denial  *answer       // nil unless the goroutine waits for permits of a limit
}

// waiter is a caller in a queue.
type waiter struct {
	permits   int
	holdID    string
	deadline  time.Time // zero for none
	element   *list.Element
	done      chan error // gets the result, nil for granted permits
	grant     *answer    // set before a nil in done
	outageErr error      // of the service
}

type batchBound struct {
	waiters int
	permits int64
}

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
		a, err := q.client.decide(q.client.lifetime, call{request: q.request, n: permits, chargesNothingIfDenied: true, holdID: batch[0].holdID})
		switch {
		case q.client.lifetime.Err() != nil:
			// nextBatch ends the waits and returns nil.
		case err != nil && isOutage(err):
			q.noteOutage(err)
			q.pause(outagePauses.NextBackOff(), nil)
			continue
		case err != nil:
			q.finishBatch(batch, err)
		case a.Allowed:
			q.grantBatch(batch, a)
			bound = batchBound{waiters: min(2*len(batch), maxWaiters), permits: math.MaxInt64}
			if a.Limited {
				bound.permits = int64(a.Remaining)
			}
			slotPauses.Reset()
		case len(batch) > 1:
			if a.Never {
				maxWaiters = 1
			}
			bound = batchBound{waiters: len(batch) / 2, permits: int64(a.Remaining)}
		case a.Never:
			q.finishBatch(batch, newWeightError(permits, a))
		case a.holdTime > 0: // only slots are missing, and a holder can release its slot at any time
			q.pause(min(slotPauses.NextBackOff(), max(a.retryAfter, firstSlotPause)), nil)
		default:
			q.pause(a.retryAfter+jitter(a.retryAfter), a)
		}
		outagePauses.Reset()
	}
}

func newBackoff(first, longest time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier = first, longest, 2
	return b
}

// jitter returns a random delay, so that not all processes that wait for the same reset call at once.
func jitter(wait time.Duration) time.Duration {
	return rand.N(min(shortestJitter+wait/20, longestJitter))
}

// nextBatch returns the first waiters and the sum of their permits, within bound, but always the first waiter. If
// the queue is empty or the client is closed, it returns nil and removes the queue.
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

// grantBatch grants a batch. It refunds the permits of waiters that have left.
func (q *queue) grantBatch(batch []*waiter, g *answer) {
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

// pause waits for d, or until endPause. denial says when there are permits, or is nil. If pause rejects the first
// waiter, it returns at once, because the next waiter may need fewer permits.
func (q *queue) pause(d time.Duration, denial *answer) {
	c := q.client
	c.mu.Lock()
	q.denial = denial
	first := q.waiters.Front()
	q.rejectLateWaiters()
	isFirst := first != nil && q.waiters.Front() == first
	c.mu.Unlock()
	if isFirst {
		timer, stop := c.clock.NewTimer(d)
		defer stop()
		select {
		case <-timer:
		case <-q.wakeUps:
		case <-c.lifetime.Done():
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	q.denial = nil
}

// rejectLateWaiters ends the wait of the waiters whose permits come after their deadline. If it rejects the first
// one, it rejects no other, because q.denial is about the first. The caller holds client.mu.
func (q *queue) rejectLateWaiters() {
	if q.denial == nil {
		return
	}
	now := q.client.clock.Now()
	firstWait := q.denial.calledAt.Add(q.denial.retryAfter).Sub(now)
	var permits int64 // of the waiters behind the first one, up to w
	for e := q.waiters.Front(); e != nil; {
		w, isFirst, wait := e.Value.(*waiter), e.Prev() == nil, firstWait
		e = e.Next()
		if !isFirst {
			permits += int64(w.permits)
		}
		// The waiters behind the first one get at most Limit permits in each window.
		if windows := permits / max(int64(q.denial.Limit), 1); windows > 0 && q.denial.Limit > 0 {
			wait = math.MaxInt64
			if n := float64(firstWait) + float64(windows)*float64(q.denial.Window); n < math.MaxInt64 {
				wait = time.Duration(n)
			}
		}
		if w.deadline.IsZero() || w.deadline.Sub(now) >= wait {
			continue
		}
		q.finishWaiter(w, &WaitError{wait})
		if isFirst {
			return
		}
		permits -= int64(w.permits)
	}
}

func (q *queue) endPause() {
	select {
	case q.wakeUps <- struct{}{}:
	default: // the goroutine has a signal already
	}
}

package client

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/seed-81f232ab/rls/internal/base/wait"
)

// Acquire waits until one event may happen. Callers of one Client that wait for the same
// descriptors get their permits in the order of their calls.
//
// If the permit can't come before the deadline of ctx, Acquire returns a *WaitError at once. If
// ctx ends, Acquire returns the error of ctx and charges nothing. While the service does not
// answer, Acquire with FailClosed tries again until ctx ends.
func (c *Client) Acquire(ctx context.Context, domain string, ds ...Descriptor) error {
	return c.AcquireN(ctx, 1, domain, ds...)
}

// AcquireN waits until n events may happen. If a limit never has n permits, it returns a *WeightError at once.
func (c *Client) AcquireN(ctx context.Context, n int, domain string, ds ...Descriptor) error {
	_, err := c.waitForPermits(ctx, &Request{Domain: domain, Descriptors: ds, N: zeroToNoPermits(n)}, "")
	return err
}

// waitForPermits waits until the service grants the permits of request. holdID is the id of a hold, or "" without a hold.
func (c *Client) waitForPermits(ctx context.Context, request *Request, holdID string) (*answer, error) {
	if err := request.check(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	waiter := &waiter{permits: request.n(), holdID: holdID, result: make(chan error, 1)}
	if deadline, ok := ctx.Deadline(); ok {
		waiter.deadline = c.clock.Now().Add(time.Until(deadline))
	}
	q, err := c.enqueue(request, waiter)
	if err != nil {
		return nil, err
	}
	select {
	case err = <-waiter.result:
	case <-ctx.Done():
		err = q.removeWaiter(waiter, ctx.Err())
	}
	return waiter.grant, err
}

func (c *Client) enqueue(request *Request, waiter *waiter) (*queue, error) {
	key := request.key()
	if waiter.holdID != "" {
		key = holdKeyPrefix + key
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return nil, ErrClosed
	}
	q := c.queues[key]
	if q == nil {
		q = &queue{client: c, key: key, request: request, isHold: waiter.holdID != "", wakeUps: make(chan struct{}, 1)}
		c.queues[key] = q
		c.goroutines.Go(q.run)
	}
	waiter.element = q.waiters.PushBack(waiter)
	q.rejectLateWaiters()
	return q, nil
}

// removeWaiter ends the wait of w with err. If w already has a result, removeWaiter returns the result.
func (q *queue) removeWaiter(w *waiter, err error) error {
	client := q.client
	client.mu.Lock()
	if w.element == nil {
		client.mu.Unlock()
		return <-w.result
	}
	isFirst := q.waiters.Front() == w.element
	q.waiters.Remove(w.element)
	w.element = nil
	// The queue pauses until the permits of the first waiter come. If the new first waiter wants another number of
	// permits, they can come earlier.
	if newFirst := q.waiters.Front(); isFirst && (newFirst == nil || newFirst.Value.(*waiter).permits != w.permits) {
		wait.Signal(q.wakeUps)
	}
	client.mu.Unlock()
	if w.outageErr != nil {
		return fmt.Errorf("%w; the last call failed: %w", err, w.outageErr)
	}
	return err
}

// refundInBackground gives the permits of request back in a goroutine. grant is the answer that granted the permits.
func (c *Client) refundInBackground(request *Request, holdID string, grant *answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return
	}
	c.goroutines.Go(func() {
		err := c.refund(context.WithoutCancel(c.lifetime), request, holdID, grant)
		if err != nil && !errors.Is(err, ErrClosed) {
			c.log.Warn("refund failed", "error", err)
		}
	})
}

// refund gives the permits of request back. If all limits have forgotten the permits, refund does nothing. grant is the
// answer that granted the permits.
func (c *Client) refund(ctx context.Context, request *Request, holdID string, grant *answer) error {
	if grant.holdTime == 0 {
		holdID = "" // no limit counts holds
	}
	if holdID == "" && c.clock.Now().Sub(grant.calledAt) >= grant.resetAfter {
		return nil
	}
	_, err := c.decide(ctx, call{request: request, n: -request.n(), isGrantDegraded: grant.Degraded, holdID: holdID})
	if err == nil {
		c.endPauses(request)
	}
	return err
}

// endPauses makes the queues of r ask again, because the client has given permits of r back.
func (c *Client) endPauses(r *Request) {
	key := r.key()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, queueKey := range []string{key, holdKeyPrefix + key} {
		if q := c.queues[queueKey]; q != nil {
			wait.Signal(q.wakeUps)
		}
	}
}

const (
	maxBatchWaiters    = 64                    // the maximum number of waiters that share a call
	firstOutagePause   = 50 * time.Millisecond // the first pause between calls while the service fails
	longestOutagePause = 5 * time.Second
	firstSlotPause     = 20 * time.Millisecond // the first pause between calls for a slot of a concurrency limit
	longestSlotPause   = time.Second
	pauseJitter        = 0.5 // a pause between calls is up to 50 % longer or shorter

	// A pause until a reset gets a random delay. The delay is at most 5 % of the pause plus extraDelay, and at most
	// maxDelay.
	extraDelay = time.Millisecond
	maxDelay   = time.Second
)

// queue has the callers that wait for permits of one request, in the order of their calls. The goroutine of the queue
// asks for the permits of the first callers. client.mu guards the fields.
type queue struct {
	client  *Client
	key     string
	request *Request // the queue does not use N
	isHold  bool     // the waiters want holds, and each waiter has a hold id
	waiters list.List
	wakeUps chan struct{} // an element in this channel ends a pause of the goroutine
	denial  *answer       // the last denial, while the goroutine pauses because of this denial; otherwise nil
}

type waiter struct {
	permits   int
	holdID    string
	deadline  time.Time     // zero without a deadline
	element   *list.Element // the place in the queue; nil after the end of the wait
	result    chan error    // gets one error when the wait ends; a nil error means granted permits
	grant     *answer       // the answer that granted the permits; set before result gets nil
	outageErr error         // the last error of the service in an outage
}

// batchBound bounds the number of waiters in a batch, and the sum of the permits that these waiters want.
type batchBound struct {
	waiters int
	permits int64
}

var oneWaiter = batchBound{waiters: 1, permits: math.MaxInt64}

// run asks for the permits of the waiters, until the queue is empty or the client is closed.
func (q *queue) run() {
	maxWaiters := maxBatchWaiters
	if q.isHold {
		maxWaiters = 1 // a call has one hold id
	}
	bound := oneWaiter
	outagePauses := wait.Backoff{Initial: firstOutagePause, Max: longestOutagePause, Jitter: pauseJitter}.Start()
	slotPauses := wait.Backoff{Initial: firstSlotPause, Max: longestSlotPause, Jitter: pauseJitter}.Start()
	for {
		batch, permits := q.nextBatch(bound)
		if batch == nil {
			return
		}
		bound = oneWaiter
		answer, err := q.client.decide(q.client.lifetime, call{request: q.request, n: permits, chargesNothingIfDenied: true, holdID: batch[0].holdID})
		switch {
		case q.client.lifetime.Err() != nil:
			// nextBatch ends the waits and returns nil.
		case err != nil && isOutage(err):
			q.recordOutage(err)
			q.pause(outagePauses.NextBackOff(), nil)
			continue
		case err != nil:
			q.finishBatch(batch, nil, err)
		case answer.Allowed:
			q.finishBatch(batch, answer, nil)
			bound = batchBound{waiters: min(2*len(batch), maxWaiters), permits: math.MaxInt64}
			if answer.Limited {
				bound.permits = int64(answer.Remaining)
			}
			slotPauses.Reset()
		case len(batch) > 1:
			if answer.Never {
				maxWaiters = 1
			}
			bound = batchBound{waiters: len(batch) / 2, permits: int64(answer.Remaining)}
		case answer.Never:
			q.finishBatch(batch, nil, &WeightError{N: permits, Name: answer.Name, Limit: answer.Limit})
		case answer.holdTime > 0: // only a slot is missing, and a holder can release a slot at any time
			q.pause(min(slotPauses.NextBackOff(), max(answer.retryAfter, firstSlotPause)), nil)
		default:
			delay := rand.N(min(extraDelay+answer.retryAfter/20, maxDelay)) // so that not all processes that wait for the same reset call at the same time
			q.pause(answer.retryAfter+delay, answer)
		}
		outagePauses.Reset()
	}
}

// nextBatch returns the first waiters within bound, and the sum of their permits. The batch always has the first
// waiter. If the queue is empty or the client is closed, nextBatch returns nil and removes the queue.
func (q *queue) nextBatch(bound batchBound) (batch []*waiter, permits int) {
	client := q.client
	client.mu.Lock()
	defer client.mu.Unlock()
	if client.isClosed {
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
		delete(client.queues, q.key)
	}
	select {
	case <-q.wakeUps: // the next call comes at once, so the goroutine needs no wake-up
	default:
	}
	return batch, permits
}

// finishBatch ends the waits of a batch with the answer that granted the permits, or with err. It refunds the permits of the
// waiters that have left the queue.
func (q *queue) finishBatch(batch []*waiter, grant *answer, err error) {
	unusedPermits := 0
	q.client.mu.Lock()
	for _, w := range batch {
		if w.element == nil { // w has left the queue
			unusedPermits += w.permits
			continue
		}
		w.grant = grant
		q.finishWaiter(w, err)
	}
	q.client.mu.Unlock()
	if grant != nil && unusedPermits > 0 {
		r := *q.request
		r.N = unusedPermits
		q.client.refundInBackground(&r, batch[0].holdID, grant)
	}
}

// finishWaiter ends the wait of w. err is nil if w has its permits. The caller has locked client.mu.
func (q *queue) finishWaiter(w *waiter, err error) {
	q.waiters.Remove(w.element)
	w.element = nil
	w.result <- err
}

// recordOutage logs err, and sets the outageErr of all waiters. A waiter whose context ends returns this error too.
func (q *queue) recordOutage(err error) {
	q.client.log.Warn("rls failed", "error", err)
	q.client.mu.Lock()
	defer q.client.mu.Unlock()
	for e := q.waiters.Front(); e != nil; e = e.Next() {
		e.Value.(*waiter).outageErr = err
	}
}

// pause waits for d, or until a wake-up. denial is the denial of the first waiter, or nil if the pause has another reason. If the
// first waiter can't get its permits before its deadline, pause rejects the waiter and returns at once, because the
// next waiter may need fewer permits.
func (q *queue) pause(d time.Duration, denial *answer) {
	client := q.client
	client.mu.Lock()
	q.denial = denial
	firstElement := q.waiters.Front()
	q.rejectLateWaiters()
	mustWait := firstElement != nil && q.waiters.Front() == firstElement
	client.mu.Unlock()
	if mustWait {
		timer, stop := client.clock.NewTimer(d)
		defer stop()
		select {
		case <-timer:
		case <-q.wakeUps:
		case <-client.lifetime.Done():
		}
	}
	client.mu.Lock()
	defer client.mu.Unlock()
	q.denial = nil
}

// rejectLateWaiters ends the wait of each waiter that would get its permits after its deadline. If it rejects the first
// waiter, it rejects no other waiter, because q.denial is the denial of the first waiter. The caller has locked client.mu.
func (q *queue) rejectLateWaiters() {
	if q.denial == nil {
		return
	}
	now := q.client.clock.Now()
	firstWait := q.denial.calledAt.Add(q.denial.retryAfter).Sub(now)
	var permits int64 // the sum of the permits from the second waiter to w
	for e := q.waiters.Front(); e != nil; {
		w, isFirst, waitTime := e.Value.(*waiter), e.Prev() == nil, firstWait
		e = e.Next()
		if !isFirst {
			permits += int64(w.permits)
		}
		// The waiters after the first waiter get at most Limit permits in each window.
		if windows := permits / max(int64(q.denial.Limit), 1); windows > 0 && q.denial.Limit > 0 {
			waitTime = math.MaxInt64
			if nanos := float64(firstWait) + float64(windows)*float64(q.denial.Window); nanos < math.MaxInt64 {
				waitTime = time.Duration(nanos)
			}
		}
		if w.deadline.IsZero() || w.deadline.Sub(now) >= waitTime {
			continue
		}
		q.finishWaiter(w, &WaitError{waitTime})
		if isFirst {
			return
		}
		permits -= int64(w.permits)
	}
}

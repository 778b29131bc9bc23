package client

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Acquire waits until one event may happen. Callers of one Client that wait for the same
// descriptors get their permits in the order of their calls.
//
// If the permit can't come before the deadline of ctx, Acquire returns a *WaitError at once. If
// ctx ends, Acquire returns its error, and nothing is charged. While the service does not
// answer, Acquire with FailClosed tries again until ctx ends.
func (c *Client) Acquire(ctx context.Context, domain string, ds ...Descriptor) error {
	return c.AcquireN(ctx, 1, domain, ds...)
}

// AcquireN waits until n events may happen. If a limit never has n permits, AcquireN returns a
// *WeightError at once.
func (c *Client) AcquireN(ctx context.Context, n int, domain string, ds ...Descriptor) error {
	_, err := c.wait(ctx, &Request{Domain: domain, Descriptors: ds, N: rejectZero(n)}, "")
	return err
}

// wait waits until the permits of r are granted. holdID names the hold of a concurrency limit, if any.
func (c *Client) wait(ctx context.Context, r *Request, holdID string) (*answer, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w := &waiter{permits: r.n(), holdID: holdID, done: make(chan error, 1)}
	if deadline, ok := ctx.Deadline(); ok {
		w.deadline = c.clock.Now().Add(time.Until(deadline))
	}
	q, err := c.enqueue(r, w)
	if err != nil {
		return nil, err
	}
	select {
	case err = <-w.done:
	case <-ctx.Done():
		err = q.leave(w, ctx.Err())
	}
	return w.grant, err
}

func (c *Client) enqueue(r *Request, w *waiter) (*queue, error) {
	key := r.key()
	if w.holdID != "" {
		key = holdKeyPrefix + key
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	q := c.queues[key]
	if q == nil {
		q = &queue{client: c, key: key, request: r, isHold: w.holdID != "", wakeUps: make(chan struct{}, 1)}
		c.queues[key] = q
		c.goroutines.Add(1)
		go q.run()
	}
	w.element = q.waiters.PushBack(w)
	q.rejectLateWaiters()
	return q, nil
}

// leave ends the wait of w with err, unless w has a result already.
func (q *queue) leave(w *waiter, err error) error {
	c := q.client
	c.mu.Lock()
	if w.element == nil {
		c.mu.Unlock()
		return <-w.done
	}
	isFirst := q.waiters.Front() == w.element
	q.waiters.Remove(w.element)
	w.element = nil
	if next := q.waiters.Front(); isFirst && (next == nil || next.Value.(*waiter).permits != w.permits) {
		q.endPause()
	}
	c.mu.Unlock()
	if w.outageErr != nil {
		return fmt.Errorf("%w; the last call failed: %w", err, w.outageErr)
	}
	return err
}

func (c *Client) refund(r *Request, holdID string, g *answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.goroutines.Add(1)
	go func() {
		defer c.goroutines.Done()
		err := c.giveBack(context.WithoutCancel(c.lifetime), r, holdID, g)
		if err != nil && !errors.Is(err, ErrClosed) {
			c.log.Warn("refund failed", "error", err)
		}
	}()
}

// giveBack gives the permits of r back, unless their limits have forgotten them.
func (c *Client) giveBack(ctx context.Context, r *Request, holdID string, g *answer) error {
	if g.holdTime == 0 {
		holdID = "" // the limits count no holders
	}
	if holdID == "" && c.clock.Now().Sub(g.calledAt) >= g.resetAfter {
		return nil
	}
	_, err := c.decide(ctx, call{request: r, n: -r.n(), grantedWithoutService: g.Degraded, holdID: holdID})
	if err == nil {
		c.endPauses(r)
	}
	return err
}

// endPauses makes the queues of r ask again, because its permits are given back.
func (c *Client) endPauses(r *Request) {
	key := r.key()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range []string{key, holdKeyPrefix + key} {
		if q := c.queues[key]; q != nil {
			q.endPause()
		}
	}
}

package client

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-81f232ab/rls/internal/base/wait"
)

// DelayTakes makes each call of c that takes permits last for delay. The service decides the call at
// the end of this time, even if the caller has cancelled the call.
func DelayTakes(c *Client, delay time.Duration) { c.decider = slowDecider{c.decider, delay} }

type slowDecider struct {
	decider
	delay time.Duration
}

func (s slowDecider) decide(ctx context.Context, c *call) (*answer, error) {
	if !c.chargesNothingIfDenied {
		return s.decider.decide(ctx, c)
	}
	type result struct {
		answer *answer
		err    error
	}
	results := make(chan result, 1)
	go func() {
		time.Sleep(s.delay)
		a, err := s.decider.decide(context.WithoutCancel(ctx), c)
		results <- result{a, err}
	}()
	select {
	case r := <-results:
		return r.answer, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// WaiterCount returns the number of callers that wait for permits.
func WaiterCount(c *Client) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, q := range c.queues {
		n += q.waiters.Len()
	}
	return n
}

// PausesDespiteEarlierRelease reports whether a queue still pauses after a call if a permit was given
// back before the call.
func PausesDespiteEarlierRelease() bool {
	q := &queue{client: &Client{}, wakeUps: make(chan struct{}, 1)}
	w := &waiter{permits: 1}
	w.element = q.waiters.PushBack(w)
	wait.Signal(q.wakeUps)
	q.nextBatch(oneWaiter)
	return len(q.wakeUps) == 0
}

// CallOptions are the differences between calls for one Request.
type CallOptions struct {
	ChargesNothingIfDenied, Refunds bool
	HoldID                          string
}

// Ask sends a call of c for r.N permits. It returns the answer as text, or the text of the error.
func Ask(ctx context.Context, c *Client, r Request, o CallOptions) string {
	n := r.N
	if o.Refunds {
		n = -n
	}
	a, err := c.decide(ctx, call{request: &r, n: n, chargesNothingIfDenied: o.ChargesNothingIfDenied, holdID: o.HoldID})
	if err != nil {
		return err.Error()
	}
	a.calledAt = time.Time{}
	return fmt.Sprintf("%+v", *a)
}

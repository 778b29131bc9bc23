package client

import (
	"context"
	"sync"
	"time"
)

// Reservation has permits that Cancel can give back. Its methods are safe for concurrent use. A usual form is:
//
//	r, err := c.Reserve(ctx, "shop", tenant)
//	…
//	defer r.Cancel() // does nothing after Commit
//	if r.OK() && work() == nil {
//		r.Commit()
//	}
type Reservation struct {
	client  *Client
	request *Request
	grant   *answer // the answer to the request; it can be a denial

	mu      sync.Mutex
	isFinal bool // Commit or Cancel has succeeded
}

// Reserve takes a permit if a permit is left. It does not wait, and does not join the queue of Acquire.
func (c *Client) Reserve(ctx context.Context, domain string, ds ...Descriptor) (*Reservation, error) {
	return c.ReserveN(ctx, 1, domain, ds...)
}

// ReserveN takes n permits if n permits are left. If a limit never has n permits, ReserveN returns a *WeightError.
func (c *Client) ReserveN(ctx context.Context, n int, domain string, ds ...Descriptor) (*Reservation, error) {
	r := &Reservation{client: c, request: &Request{Domain: domain, Descriptors: ds, N: zeroToNoPermits(n)}}
	a, err := c.send(ctx, call{request: r.request, chargesNothingIfDenied: true})
	switch {
	case err != nil:
		return nil, err
	case a.Never:
		return nil, &WeightError{N: n, Name: a.Name, Limit: a.Limit}
	}
	r.grant = a
	return r, nil
}

// OK reports whether the permits are granted.
func (r *Reservation) OK() bool { return r.grant.Allowed }

// Delay returns the time after which Reserve can succeed, or 0 if the permits are granted.
func (r *Reservation) Delay() time.Duration {
	if r.OK() {
		return 0
	}
	return r.grant.retryAfter
}

// Commit keeps the permits, so that a later Cancel does nothing.
func (r *Reservation) Commit() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isFinal = true
}

// Cancel gives granted permits back. After Commit or after a successful Cancel, it does nothing. It also does nothing if
// all limits have forgotten the permits.
func (r *Reservation) Cancel() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isFinal || !r.OK() {
		return nil
	}
	err := r.client.refund(context.Background(), r.request, "", r.grant)
	r.isFinal = err == nil
	return err
}

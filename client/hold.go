package client

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
)

const holdKeyPrefix = "hold " // the start of the keys of queues for holds

// errSlotTaken is the reason for the loss of a hold after the service has denied its renewal.
var errSlotTaken = errors.New("renewal denied, because other holders have the slots")

// Hold is a permit that the caller must give back. If a limit of the rule has algorithm:
// concurrency, the Hold is a slot of this limit, and the client renews the slot until Release.
// Otherwise Release does nothing. The methods are safe for concurrent use.
type Hold struct {
	client     *Client
	request    *Request
	id         string
	grant      *answer       // the answer that granted the slot
	lossSignal chan struct{} // is closed when the hold is lost

	// stopRenewal ends the renewal. It does not cancel a call in flight.
	stopRenewal context.CancelFunc

	// isGrantedByService is true if the service has granted a slot. isGrantedWithoutService is true
	// if Options.Failure has granted a slot. Only the goroutine of the renewal writes these fields.
	// Other goroutines may read the fields after renewalEnded is closed.
	isGrantedByService, isGrantedWithoutService bool

	renewalEnded chan struct{} // is closed when the renewal has ended

	mu         sync.Mutex
	isReleased bool
}

// AcquireHold waits for a slot of a concurrency limit, like Acquire. The service says how long
// the hold lasts, and the client renews the hold after each third of this time. If the process
// dies, the slot is free again at the end of this time.
//
// A renewal is a call. All limits of the rule should have algorithm: concurrency, because a limit
// with another algorithm charges each renewal.
func (c *Client) AcquireHold(ctx context.Context, domain string, d Descriptor) (*Hold, error) {
	return c.AcquireHoldN(ctx, 1, domain, d)
}

// AcquireHoldN is AcquireHold for n slots.
func (c *Client) AcquireHoldN(ctx context.Context, n int, domain string, d Descriptor) (*Hold, error) {
	r := &Request{Domain: domain, Descriptors: []Descriptor{d}, N: zeroToNoPermits(n)}
	hold := &Hold{client: c, request: r, id: rand.Text(), lossSignal: make(chan struct{}), renewalEnded: make(chan struct{})}
	var err error
	if hold.grant, err = c.waitForPermits(ctx, r, hold.id); err != nil {
		return nil, err
	}
	if hold.grant.holdTime == 0 {
		hold.stopRenewal, hold.isReleased = func() {}, true
		close(hold.renewalEnded)
		return hold, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return nil, ErrClosed
	}
	hold.recordGrant(hold.grant.Degraded)
	var renewCtx context.Context
	renewCtx, hold.stopRenewal = context.WithCancel(c.lifetime)
	c.goroutines.Go(func() {
		defer close(hold.renewalEnded)
		hold.renew(renewCtx)
	})
	return hold, nil
}

// recordGrant records who has granted a slot: the service, or Options.Failure if isDegraded is true.
func (h *Hold) recordGrant(isDegraded bool) {
	h.isGrantedWithoutService = h.isGrantedWithoutService || isDegraded
	h.isGrantedByService = h.isGrantedByService || !isDegraded
}

// renew renews h until ctx ends or h is lost. When ctx ends, renew waits for a call in flight and does not cancel it.
// Otherwise the service could execute the call after the release, and take the slot again.
func (h *Hold) renew(ctx context.Context) {
	client, holdTime := h.client, h.grant.holdTime
	expiry := h.grant.calledAt.Add(holdTime)
	pause := holdTime / 3
	for {
		timer, stop := client.clock.NewTimer(pause)
		select {
		case <-timer:
		case <-ctx.Done():
			stop()
			return
		}
		answer, err := client.decide(client.lifetime, call{request: h.request, n: h.request.n(), chargesNothingIfDenied: true, holdID: h.id})
		if err == nil && answer.Allowed {
			h.recordGrant(answer.Degraded)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && answer.Allowed:
			if answer.holdTime > 0 { // the hold time in the limits file may have changed
				holdTime = answer.holdTime
			}
			expiry, pause = answer.calledAt.Add(holdTime), holdTime/3
			continue
		case err != nil && isOutage(err) && client.clock.Now().Before(expiry):
			client.log.Warn("renewal of a hold failed", "error", err)
			pause = holdTime / 10
			continue
		}
		if err == nil {
			err = errSlotTaken
		}
		client.log.Warn("hold lost", "error", err)
		close(h.lossSignal)
		return
	}
}

// Limited reports whether a limit counts the permit. If it returns false, no rule matches the descriptor.
func (h *Hold) Limited() bool { return h.grant.Limited }

// Lost returns a channel that is closed if the slot is lost. The slot is lost if all renewals fail until the hold
// expires, or if the service rejects or denies a renewal. The program should then end the work that needs the slot.
func (h *Hold) Lost() <-chan struct{} { return h.lossSignal }

// Release gives the slot back. It first waits for a renewal in flight, which takes at most
// Options.Timeout. After a successful Release, further calls do nothing.
func (h *Hold) Release() error {
	h.stopRenewal()
	<-h.renewalEnded
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.isReleased {
		return nil
	}
	const toService, toLocalLimits = false, true
	var localErr, serviceErr error
	if h.isGrantedWithoutService {
		localErr = h.refund(toLocalLimits)
	}
	if h.isGrantedByService {
		serviceErr = h.refund(toService)
	}
	err := errors.Join(localErr, serviceErr)
	h.isReleased = err == nil
	return err
}

// refund gives the slot back to the service, or to the limits of this process if isDegraded is true.
func (h *Hold) refund(isDegraded bool) error {
	grant := *h.grant
	grant.Degraded = isDegraded
	return h.client.refund(context.Background(), h.request, h.id, &grant)
}

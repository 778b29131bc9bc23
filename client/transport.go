package client

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"strconv"
	"time"
)

// Defaults of Transport and PeerLimits.
const (
	DefaultMaxWait    = 30 * time.Second
	DefaultMaxRetries = 3
)

// maxDiscard bounds the body of a 429 that is read to use its connection again.
const maxDiscard = 64 << 10

// Transport is an http.RoundTripper that honours the 429 of a peer: it waits as long as
// Retry-After says and sends the request again. It returns the 429 to the caller if the answer
// has no Retry-After, if the waits would exceed MaxWait or the deadline of the request, or if
// the body can't be sent again (Request.GetBody is nil).
//
// With a Client, Transport also acquires a permit before it sends a request.
type Transport struct {
	// Base sends the requests. The default is http.DefaultTransport.
	Base http.RoundTripper

	// MaxWait bounds the sum of all waits for a peer. The default is DefaultMaxWait.
	MaxWait time.Duration

	// MaxRetries bounds the retries of a request. The default is DefaultMaxRetries.
	MaxRetries int

	// Client acquires the permits of Request before a request is sent. It can be nil.
	Client *Client

	// Request returns the permits that a request needs, or nil for none. It is required with
	// Client.
	Request func(*http.Request) *Request
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	if t.Client != nil {
		if r := t.Request(req); r != nil {
			if _, err := t.Client.wait(req.Context(), r, ""); err != nil {
				closeBody(req)
				return nil, err
			}
		}
	}
	waits := newPeerWaits(req.Context(), t.MaxWait, t.MaxRetries)
	for {
		resp, err := base.RoundTrip(req)
		if err != nil || resp.StatusCode != http.StatusTooManyRequests {
			return resp, err
		}
		wait, ok := retryAfter(resp.Header.Get("Retry-After"), time.Now())
		if !ok || !waits.allow(wait) {
			return resp, nil
		}
		retry, ok := newRetry(req)
		if !ok {
			return resp, nil
		}
		_, _ = io.CopyN(io.Discard, resp.Body, maxDiscard)
		_ = resp.Body.Close()
		if err := waits.wait(wait); err != nil {
			closeBody(retry)
			return nil, err
		}
		req = retry
	}
}

// newRetry returns a copy of req to send. ok is false if the body can't be sent again.
func newRetry(req *http.Request) (retry *http.Request, ok bool) {
	retry = req.Clone(req.Context())
	if req.Body == nil || req.Body == http.NoBody {
		return retry, true
	}
	if req.GetBody == nil {
		return nil, false
	}
	body, err := req.GetBody()
	if err != nil {
		return nil, false
	}
	retry.Body = body
	return retry, true
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// retryAfter returns the wait of a Retry-After header, which has seconds or a time.
func retryAfter(text string, now time.Time) (time.Duration, bool) {
	if s, err := strconv.ParseInt(text, 10, 32); err == nil {
		return time.Duration(s) * time.Second, s >= 0
	}
	retryTime, err := http.ParseTime(text)
	return max(retryTime.Sub(now), 0), err == nil
}

// peerWaits bounds the waits for a peer.
type peerWaits struct {
	ctx     context.Context
	budget  time.Duration
	retries int
}

func newPeerWaits(ctx context.Context, maxWait time.Duration, maxRetries int) *peerWaits {
	return &peerWaits{ctx, cmp.Or(maxWait, DefaultMaxWait), cmp.Or(maxRetries, DefaultMaxRetries)}
}

// allow reports whether a wait is within the bounds, and charges the wait if it is.
func (p *peerWaits) allow(wait time.Duration) bool {
	deadline, hasDeadline := p.ctx.Deadline()
	if p.retries <= 0 || wait > p.budget || hasDeadline && time.Until(deadline) < wait {
		return false
	}
	p.retries--
	p.budget -= wait
	return true
}

// wait waits for d with a jitter, or returns the error of the context.
func (p *peerWaits) wait(d time.Duration) error {
	timer := time.NewTimer(d + jitter(d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
}

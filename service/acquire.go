package service

import (
	"cmp"
	"context"
	"strconv"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// isAcquireCall reports whether the caller waits for permits. Then a denied call charges nothing,
// so that the caller can repeat the call as often as it must.
func isAcquireCall(ctx context.Context) bool {
	values := metadata.ValueFromIncomingContext(ctx, limit.AcquireKey)
	return len(values) == 1 && values[0] == "true"
}

// chargeNoDeniedHits lets the limits of c charge admitted hits only.
func (c *Call) chargeNoDeniedHits() {
	for j := range c.hits {
		c.hits[j].Limit = c.hits[j].Limit.NotCharging()
	}
}

// finishAcquire ends a call of a caller that waits for permits. It refunds the admitted hits of
// a denied call, and tells the caller in a header when the answer changes.
func (s *Service) finishAcquire(ctx context.Context, c *Call, code rlsv3.RateLimitResponse_Code) {
	header := metadata.Pairs(limit.ResetAfterKey, seconds(c.longestResetAfter()))
	if code == rlsv3.RateLimitResponse_OVER_LIMIT {
		if !c.isPeek {
			s.refundAdmitted(context.WithoutCancel(ctx), c)
		}
		header = metadata.Pairs(limit.RetryAfterKey, c.retryAfter())
	}
	_ = grpc.SetHeader(ctx, header) // it fails only without a gRPC call, which has no headers
}

// refundAdmitted refunds the admitted hits of c in the windows that have charged the hits.
func (s *Service) refundAdmitted(ctx context.Context, c *Call) {
	var refunds []backend.Hit
	for j, h := range c.hits {
		r := &c.results[j]
		isCharged := r.Allowed && !r.Held && h.N > 0 // a renewed hold stays
		if isCharged && s.options.AllOrNone {
			isCharged = !c.isInDeniedGroup(&h)
		}
		if isCharged {
			h.N, h.Window = -h.N, r.Window
			refunds = append(refunds, h)
		}
	}
	if len(refunds) > 0 {
		s.options.Limiter.Take(ctx, c.Start, refunds, make([]backend.Result, len(refunds)))
	}
}

// isInDeniedGroup reports whether an all-or-none Limiter has not charged h, because it has denied
// another hit of the same scope. Hits of two scopes are not charged together.
func (c *Call) isInDeniedGroup(h *backend.Hit) bool {
	if !h.AllOrNone() {
		return false
	}
	for j := range c.hits {
		if other := &c.hits[j]; other.AllOrNone() && other.Limit.Scope == h.Limit.Scope && !c.results[j].Allowed {
			return true
		}
	}
	return false
}

// longestResetAfter returns the time in microseconds until all limits have forgotten the hits of c.
func (c *Call) longestResetAfter() int64 {
	longest := int64(0)
	for j := range c.results {
		longest = max(longest, c.hits[j].Limit.ForgottenAfter(c.results[j].Result))
	}
	return longest
}

// retryAfter returns the RetryAfterKey of a denied call. A slot can become free before its hold
// expires, so the wait for a slot counts only if no other limit denies the call.
func (c *Call) retryAfter() string {
	var windowWait, slotWait int64
	for j := range c.results {
		if !c.isDenied(j) {
			continue
		}
		r := &c.results[j]
		switch {
		case r.RetryAfter == limit.Never:
			return limit.RetryNever
		case c.hits[j].Limit.Algorithm.HasHolds():
			slotWait = max(slotWait, r.RetryAfter)
		default:
			windowWait = max(windowWait, r.RetryAfter)
		}
	}
	return seconds(cmp.Or(windowWait, slotWait))
}

// seconds returns microseconds as a decimal number of seconds.
func seconds(micros int64) string {
	return strconv.FormatFloat(float64(micros)/secondMicros, 'f', -1, 64)
}

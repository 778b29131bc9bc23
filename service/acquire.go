package service

import (
	"cmp"
	"context"
	"math"
	"strconv"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// chargeNothingIfDenied makes the hits of c one all-or-none group, so that a denied call charges nothing. In quota mode or
// shadow mode, a call can pass although a hit is denied. Then the hits can't be a group, and respond refunds the charged
// hits of a denied call.
func (s *Service) chargeNothingIfDenied(c *Call) {
	isGroup := !c.config.IsShadow(s.options.ShadowMode)
	for j := range c.hits {
		isGroup = isGroup && !isInQuotaMode(c.Rules[c.hitDescriptors[j]], true, s.options.QuotaMode)
	}
	for j := range c.hits {
		if isGroup {
			c.hits[j].AllOrNone = true
		} else {
			c.hits[j].Limit = c.hits[j].Limit.WithChargeDenied(false)
		}
	}
}

// sendWait sends a header with the time until a denied call can pass, or until all limits have forgotten the hits of an
// admitted call.
func (s *Service) sendWait(ctx context.Context, c *Call, code rlsv3.RateLimitResponse_Code) {
	key, text := limit.ResetAfterKey, ""
	if code == rlsv3.RateLimitResponse_OVER_LIMIT {
		// A slot can become free before its hold expires. So the wait for a slot counts only if no other limit denies the call.
		const withoutSlots, withSlots = false, true
		wait := cmp.Or(c.retryAfter(s.options.QuotaMode, withoutSlots), c.retryAfter(s.options.QuotaMode, withSlots))
		key, text = limit.RetryAfterKey, secondsText(wait)
		if wait == endlessWait {
			text = limit.RetryNever
		}
	} else {
		longestReset := int64(0)
		for j := range c.results {
			longestReset = max(longestReset, c.hits[j].Limit.TimeUntilForgotten(c.results[j].Result))
		}
		text = secondsText(longestReset)
	}
	_ = grpc.SetHeader(ctx, metadata.Pairs(key, text)) // it fails only without a gRPC call, which has no headers
}

// refundAdmittedHits refunds the hits that a denied call has charged. Each refund goes to the window of the charge.
func (s *Service) refundAdmittedHits(ctx context.Context, c *Call) {
	var refunds []backend.Hit
	for j, h := range c.hits {
		if c.isCharged(j) {
			h.N, h.WindowStart = -h.N, c.results[j].WindowStart
			refunds = append(refunds, h)
		}
	}
	if len(refunds) > 0 {
		s.options.Limiter.Take(ctx, c.Start, refunds, make([]backend.Result, len(refunds)))
	}
}

// hasDeniedGroup reports whether a hit has denied its all-or-none group. It skips hits above max_hits, because the Limiter
// got only peeks for them.
func (c *Call) hasDeniedGroup() bool {
	for j := range c.hits {
		isPeekOnly := c.exceedsMaxHits && c.hitExceedsMaxHits(j)
		if !isPeekOnly && c.hits[j].DeniesGroup(&c.results[j]) {
			return true
		}
	}
	return false
}

// isCharged reports whether hit j was charged. The renewal of a hold charges nothing.
func (c *Call) isCharged(j int) bool {
	h, r := &c.hits[j], &c.results[j]
	isInDeniedGroup := c.isGroupDenied && h.IsInGroup()
	return r.Allowed && !r.HoldExists && h.N > 0 && !c.isPeek && !isInDeniedGroup
}

// secondsText returns microseconds in seconds: 1500000 becomes "1.5".
func secondsText(micros int64) string {
	return strconv.FormatFloat(float64(micros)/secondMicros, 'f', -1, 64)
}

// setHoldIDs copies the hold id of the call to the hits on concurrency limits. Holds without an id are anonymous.
func (c *Call) setHoldIDs(ctx context.Context) error {
	ids := metadata.ValueFromIncomingContext(ctx, limit.HoldKey)
	switch {
	case len(ids) == 0:
		return nil
	case len(ids) > 1:
		return status.Errorf(codes.InvalidArgument, "%s: got %d values, want one", limit.HoldKey, len(ids))
	}
	if err := limit.CheckHoldID(ids[0]); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	for j := range c.hits {
		if c.hits[j].Limit.Algorithm.HasHolds() {
			c.hits[j].HoldID = ids[0]
		}
	}
	return nil
}

// sendHold sends a header with the time until the hold of the call expires, if the hold has an id. With several limits, the
// shortest time counts. If another limit denies the call, the call has no hold, and sendHold sends nothing.
func (c *Call) sendHold(ctx context.Context, code rlsv3.RateLimitResponse_Code) {
	shortestHold := int64(math.MaxInt64)
	for j := range c.hits {
		l := c.hits[j].Limit
		switch {
		case c.hits[j].HoldID != "":
			shortestHold = min(shortestHold, l.Hold)
		case code == rlsv3.RateLimitResponse_OVER_LIMIT && !l.Algorithm.HasHolds() && !c.results[j].Allowed && !c.hits[j].Shadow:
			return
		}
	}
	if shortestHold < math.MaxInt64 {
		_ = grpc.SetHeader(ctx, metadata.Pairs(limit.HoldKey, secondsText(shortestHold))) // it fails only without a gRPC call, which has no headers
	}
}

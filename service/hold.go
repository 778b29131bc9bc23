package service

import (
	"context"
	"math"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/limit"
)

// setHoldIDs copies the hold id of the call to the hits of concurrency limits. Without it, the holds are anonymous.
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

// sendHold sends the shortest hold of the limits that count holders by id. If another limit denies the call, a
// release can't help the caller, so sendHold sends nothing.
func (c *Call) sendHold(ctx context.Context, code rlsv3.RateLimitResponse_Code) {
	shortestHold := int64(math.MaxInt64)
	for j := range c.hits {
		l := c.hits[j].Limit
		switch {
		case c.hits[j].HoldID != "":
			shortestHold = min(shortestHold, l.Hold)
		case code == rlsv3.RateLimitResponse_OVER_LIMIT && !l.Algorithm.HasHolds() && c.isDenied(j):
			return
		}
	}
	if shortestHold < math.MaxInt64 {
		_ = grpc.SetHeader(ctx, metadata.Pairs(limit.HoldKey, seconds(shortestHold))) // it fails only over HTTP, where the answer has no such header
	}
}

// isDenied reports whether hit j is denied by a limit that can deny the call.
func (c *Call) isDenied(j int) bool { return !c.results[j].Allowed && !c.hits[j].Shadow }

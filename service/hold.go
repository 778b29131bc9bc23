package service

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/limit"
)

// setHoldIDs copies the hold id from the metadata of the call to the hits of concurrency limits.
// Without an id, the holds are anonymous. The header of the answer has the shortest hold of these
// limits, in seconds.
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
	shortestHold := int64(limit.MaxHold)
	for j := range c.hits {
		if l := c.hits[j].Limit; l.Algorithm.HasHolds() {
			c.hits[j].HoldID = ids[0]
			shortestHold = min(shortestHold, l.Hold)
		}
	}
	_ = grpc.SetHeader(ctx, metadata.Pairs(limit.HoldKey, seconds(shortestHold))) // it fails only over HTTP, where the answer has no such header
	return nil
}

package service

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/limit"
)

// setHoldIDs gives the hits with holds the id that the metadata of the call has. Without an id, the
// holds are anonymous. The header of the answer has the time of the hold that expires first.
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
	hold := int64(limit.MaxHold)
	for j := range c.hits {
		if l := c.hits[j].Limit; l.Algorithm.HasHolds() {
			c.hits[j].Hold = ids[0]
			hold = min(hold, l.Hold)
		}
	}
	_ = grpc.SetHeader(ctx, metadata.Pairs(limit.HoldKey, seconds(hold))) // it fails only without a gRPC call, which has no headers
	return nil
}

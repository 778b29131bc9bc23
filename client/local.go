package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// Limits are limits that a Client applies in this process. Package client/local reads them from limits
// files. A program that does not import client/local does not contain the code of the service.
type Limits interface {
	// NewService returns a service with counters of its own, in which nothing is spent. The service admits
	// ratio times each limit, rounded down, and at least 1 hit of a limit above 0. ratio is above 0 and at
	// most 1. now is the clock of the service.
	NewService(ratio float64, now func() time.Time) rlsv3.RateLimitServiceServer
}

func newLocal(limits Limits, ratio float64, clock Clock) (service, error) {
	if limits == nil {
		return nil, errors.New("options: Limits: got none, want limits of package client/local")
	}
	if ratio == 0 {
		ratio = 1
	}
	if !(ratio > 0 && ratio <= 1) { // NaN is not > 0
		return nil, fmt.Errorf("options: LocalRatio: got %v, want above 0 and at most 1", ratio)
	}
	local := limits.NewService(ratio, clock.Now)
	return func(ctx context.Context, md []string, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, metadata.MD, error) {
		stream := &headerStream{}
		ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(md...))
		resp, err := local.ShouldRateLimit(grpc.NewContextWithServerTransportStream(ctx, stream), req)
		return resp, stream.header, err
	}, nil
}

// headerStream receives the header of an answer in this process, by SetHeader alone.
type headerStream struct {
	grpc.ServerTransportStream
	header metadata.MD
}

// SetHeader implements grpc.ServerTransportStream.
func (s *headerStream) SetHeader(md metadata.MD) error {
	s.header = metadata.Join(s.header, md)
	return nil
}

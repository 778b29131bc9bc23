package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/seed-81f232ab/rls/limit"
)

// retryPolicy repeats a call that did not reach the service, and a call with a connection that broke before the answer.
// gRPC can't always distinguish these two cases.
const retryPolicy = `{"methodConfig": [{"name": [{}], "retryPolicy": {
	"maxAttempts": 5, "initialBackoff": "0.02s", "maxBackoff": "0.5s", "backoffMultiplier": 2,
	"retryableStatusCodes": ["UNAVAILABLE"]}}]}`

// service calls a rate-limit service, remote or in this process, and returns the response with its header. md has the
// metadata of the call, keys and values in turn.
type service func(ctx context.Context, md []string, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, metadata.MD, error)

func (s service) decide(ctx context.Context, call *call) (*answer, error) {
	md := []string{limit.AcquireKey, strconv.FormatBool(call.chargesNothingIfDenied)}
	if call.holdID != "" {
		md = append(md, limit.HoldKey, call.holdID)
	}
	resp, header, err := s(ctx, md, call.request.proto(int64(call.n)))
	if err != nil {
		return nil, err
	}
	return newAnswer(call, resp, header), nil
}

// dial returns the service at target, and the connection to the service. The first call opens the connection.
func dial(target string, options Options) (service, *grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if options.TLS != nil {
		creds = credentials.NewTLS(options.TLS)
	}
	dialOptions := append([]grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultServiceConfig(retryPolicy),
	}, options.DialOptions...)
	conn, err := grpc.NewClient(target, dialOptions...)
	if err != nil {
		return nil, nil, fmt.Errorf("target %q: %w", target, err)
	}
	remote := rlsv3.NewRateLimitServiceClient(conn)
	return func(ctx context.Context, md []string, req *rlsv3.RateLimitRequest) (resp *rlsv3.RateLimitResponse, header metadata.MD, err error) {
		ctx = metadata.AppendToOutgoingContext(ctx, md...)
		resp, err = remote.ShouldRateLimit(ctx, req, grpc.Header(&header))
		return resp, header, err
	}, conn, nil
}

// Limits are limits that a Client applies in this process. Package client/local reads Limits from
// limits files. A program that does not import client/local does not contain the code of the service.
type Limits interface {
	// NewService returns a service with new counters. The service admits ratio times each limit, rounded down, and at
	// least 1 hit of a limit above 0. ratio is above 0 and at most 1. now is the clock of the service.
	NewService(ratio float64, now func() time.Time) rlsv3.RateLimitServiceServer
}

func newLocal(limits Limits, ratio float64, clock Clock) (service, error) {
	if limits == nil {
		return nil, errors.New("options: Limits: got none, want limits of package client/local")
	}
	ratio = cmp.Or(ratio, 1)
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

// headerStream gets the header of an answer in this process. It implements only SetHeader.
type headerStream struct {
	grpc.ServerTransportStream
	header metadata.MD
}

// SetHeader implements grpc.ServerTransportStream.
func (s *headerStream) SetHeader(md metadata.MD) error {
	s.header = metadata.Join(s.header, md)
	return nil
}

package client

import (
	"context"
	"fmt"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/seed-81f232ab/rls/limit"
)

// retryPolicy repeats calls that did not reach the service, and calls whose connection broke before
// the answer. gRPC can't always distinguish the two. It adds jitter to the back-off.
const retryPolicy = `{"methodConfig": [{"name": [{}], "retryPolicy": {
	"maxAttempts": 5, "initialBackoff": "0.02s", "maxBackoff": "0.5s", "backoffMultiplier": 2,
	"retryableStatusCodes": ["UNAVAILABLE"]}}]}`

// remote decides calls by a service.
type remote struct {
	conn    *grpc.ClientConn
	service rlsv3.RateLimitServiceClient
}

// dial returns the service at target. It does not connect yet.
func dial(target string, o Options) (*remote, error) {
	creds := insecure.NewCredentials()
	if o.TLS != nil {
		creds = credentials.NewTLS(o.TLS)
	}
	dialOptions := append([]grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultServiceConfig(retryPolicy),
	}, o.DialOptions...)
	conn, err := grpc.NewClient(target, dialOptions...)
	if err != nil {
		return nil, fmt.Errorf("target %q: %w", target, err)
	}
	return &remote{conn, rlsv3.NewRateLimitServiceClient(conn)}, nil
}

func (r *remote) decide(ctx context.Context, c *call) (*answer, error) {
	var header metadata.MD
	var options []grpc.CallOption
	if c.chargesNothingIfDenied {
		ctx = metadata.AppendToOutgoingContext(ctx, limit.AcquireKey, "true")
		options = append(options, grpc.Header(&header))
	}
	if c.holdID != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, limit.HoldKey, c.holdID)
	}
	resp, err := r.service.ShouldRateLimit(ctx, c.request.proto(c.hits()), options...)
	if err != nil {
		return nil, err
	}
	return newAnswer(c, resp, header), nil
}

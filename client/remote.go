package client

import (
	"context"
	"fmt"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// retryPolicy repeats calls that did not reach the service, and calls whose connection broke before
// the answer. gRPC can't always distinguish the two. It adds jitter to the back-off.
const retryPolicy = `{"methodConfig": [{"name": [{}], "retryPolicy": {
	"maxAttempts": 5, "initialBackoff": "0.02s", "maxBackoff": "0.5s", "backoffMultiplier": 2,
	"retryableStatusCodes": ["UNAVAILABLE"]}}]}`

// dial returns the service at target, and its connection. It does not connect yet.
func dial(target string, o Options) (service, *grpc.ClientConn, error) {
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
		return service{}, nil, fmt.Errorf("target %q: %w", target, err)
	}
	remote := rlsv3.NewRateLimitServiceClient(conn)
	return service{func(ctx context.Context, md []string, req *rlsv3.RateLimitRequest) (resp *rlsv3.RateLimitResponse, header metadata.MD, err error) {
		ctx = metadata.AppendToOutgoingContext(ctx, md...)
		resp, err = remote.ShouldRateLimit(ctx, req, grpc.Header(&header))
		return resp, header, err
	}}, conn, nil
}

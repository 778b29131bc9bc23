//go:build e2e

package e2e_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
)

// TestEnvoyRoundsWaitsDown checks what docs/envoy.md says about Envoy's headers. Envoy
// calls a service that always denies with a given wait.
func TestEnvoyRoundsWaitsDown(t *testing.T) {
	denier := &denier{}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	rlsv3.RegisterRateLimitServiceServer(server, denier)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)

	config := exampleConfig(t, "envoy.yaml", &rls{grpc: listener.Addr().String()})
	config.StaticResources.Clusters[0].HealthChecks = nil // the denier serves no health checks
	envoy := config.start()
	for _, step := range []struct {
		wait              time.Duration
		retryAfter, reset string
	}{
		{20 * time.Millisecond, "1", "0"},
		{999 * time.Millisecond, "1", "0"},
		{1500 * time.Millisecond, "1", "1"},
		{1999999 * time.Microsecond, "1", "1"},
		{2 * time.Second, "2", "2"},
		{899999999 * time.Microsecond, "899", "899"},
	} {
		denier.wait.Store(int64(step.wait))
		answer := envoy.send(t, call{"/"})
		assert.Equal(t, step.retryAfter, answer.Get("retry-after"), step.wait)
		assert.Equal(t, step.reset, answer.Get("x-ratelimit-reset"), step.wait)
	}
}

// denier denies every call.
type denier struct {
	rlsv3.UnimplementedRateLimitServiceServer
	wait atomic.Int64 // nanoseconds
}

func (d *denier) ShouldRateLimit(context.Context, *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	const overLimit = rlsv3.RateLimitResponse_OVER_LIMIT
	return &rlsv3.RateLimitResponse{OverallCode: overLimit, Statuses: []*rlsv3.RateLimitResponse_DescriptorStatus{{
		Code:               overLimit,
		CurrentLimit:       &rlsv3.RateLimitResponse_RateLimit{RequestsPerUnit: 1, Unit: rlsv3.RateLimitResponse_RateLimit_MINUTE},
		DurationUntilReset: durationpb.New(time.Duration(d.wait.Load())),
	}}}, nil
}

package client_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/client"
	"github.com/seed-81f232ab/rls/client/clienttest"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/service"
)

// limits are the limits of the tests.
const limits = `
domain: shop
descriptors:
  - key: tenant
    rate_limit: {name: tenant, unit: minute, requests_per_unit: 10}
    descriptors:
      - key: path
        rate_limits:
          - {name: path-second, unit: second, requests_per_unit: 2}
          - {name: path-hour, unit: hour, requests_per_unit: 100}
  - key: bucket
    rate_limit: {name: bucket, unit: second, requests_per_unit: 10, burst: 50, algorithm: token_bucket}
  - key: log
    rate_limit: {unit: second, requests_per_unit: 100, algorithm: sliding_log}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: bounded
    max_hits: 5
    rate_limit: {unit: hour, requests_per_unit: 100}
  - key: bounded-shadow
    max_hits: 5
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 100}
  - key: bounded-quota
    max_hits: 5
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 100}
  - key: quota
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 100}
  - key: quota-zero
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 0}
  - key: quota-unlimited
    quota_mode: true
    refunds: false
    rate_limit: {unlimited: true}
  - key: quota-disabled
    quota_mode: true
    refunds: false
    rate_limit: {unit: hour, requests_per_unit: 0, enabled: false}
  - key: quota-without-a-limit
    quota_mode: true
  - key: pair
    rate_limits:
      - {unit: minute, requests_per_unit: 5, algorithm: sliding_log}
      - {unit: second, requests_per_unit: 2, algorithm: token_bucket, burst: 4}
  - key: five
    rate_limit: {unit: minute, requests_per_unit: 5, algorithm: sliding_log}
  - key: four
    rate_limit: {unit: second, requests_per_unit: 2, algorithm: token_bucket, burst: 4}
  - key: final
    refunds: false
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: slot
    rate_limit: {algorithm: concurrency, requests_per_unit: 2, hold: 30s}
  - key: job
    rate_limits:
      - {name: slots, algorithm: concurrency, requests_per_unit: 1, hold: 30s}
      - {name: hourly, unit: hour, requests_per_unit: 1}
  - key: yearly
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: nothing
    rate_limit: {unit: hour, requests_per_unit: 0}
`

// start is the time at which the clocks of the tests start.
var start = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

var (
	tenant = client.NewDescriptor("tenant", "acme")
	bucket = client.NewDescriptor("bucket", "acme")
)

// testService is a service on a loopback port, with counters in memory.
type testService struct {
	rlsv3.RateLimitServiceServer
	server *grpc.Server
	addr   string
	calls  atomic.Int64

	// beforeDecision is called before the service decides a call, if it is set. If it returns an error, the call fails
	// with this error.
	beforeDecision atomic.Pointer[func(context.Context) error]
}

// newService starts a service that uses clock.
func newService(t *testing.T, clock *clienttest.Clock) *testService {
	t.Helper()
	return newServiceWithLimits(t, clock, limits)
}

// newServiceWithLimits is newService with other limits.
func newServiceWithLimits(t *testing.T, clock *clienttest.Clock, limits string) *testService {
	t.Helper()
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(limits)}}, limitsfile.Options{})
	require.NoError(t, err)
	store := new(descriptors.Store)
	store.Set(descriptors.Compile(set))
	s := &testService{
		RateLimitServiceServer: service.New(service.Options{Limits: store, Limiter: local.New(local.Options{}), Now: clock.Now}),
		server:                 grpc.NewServer(),
	}
	rlsv3.RegisterRateLimitServiceServer(s.server, s)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.addr = listener.Addr().String()
	go func() { _ = s.server.Serve(listener) }()
	t.Cleanup(s.server.Stop)
	return s
}

func (s *testService) ShouldRateLimit(ctx context.Context, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	s.calls.Add(1)
	if beforeDecision := s.beforeDecision.Load(); beforeDecision != nil {
		if err := (*beforeDecision)(ctx); err != nil {
			return nil, err
		}
	}
	return s.RateLimitServiceServer.ShouldRateLimit(ctx, req)
}

// cancelInFlight calls acquire, cancels its context while s decides the call, and then lets s grant
// the permits. It returns when s has got the refund.
func cancelInFlight(t *testing.T, s *testService, acquire func(context.Context) error) {
	t.Helper()
	callStarted, mayProceed := make(chan bool), make(chan bool)
	block := func(context.Context) error {
		callStarted <- true
		<-mayProceed
		return nil
	}
	s.beforeDecision.Store(&block)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- acquire(ctx) }()
	<-callStarted
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	mayProceed <- true
	<-callStarted // the refund
	s.beforeDecision.Store(nil)
	mayProceed <- true
}

// newClient returns a client of s with options o.
func newClient(t *testing.T, s *testService, o client.Options) *client.Client {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second // enough time on a busy machine
	}
	c, err := client.New(s.addr, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// remaining returns the permits of ds that are left.
func remaining(t *testing.T, c *client.Client, ds ...client.Descriptor) int {
	t.Helper()
	d, err := c.Peek(t.Context(), "shop", ds...)
	require.NoError(t, err)
	return int(d.Remaining)
}

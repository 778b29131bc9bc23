package client_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/seed-81f232ab/rls/client"
	"github.com/seed-81f232ab/rls/client/clienttest"
)

// tenantOfMethod limits all methods of a tenant together.
func tenantOfMethod(context.Context, string) *client.Request {
	return &client.Request{Domain: "shop", Descriptors: []client.Descriptor{tenant}}
}

// newHealthClient returns a client of a health service whose calls and streams c limits.
func newHealthClient(t *testing.T, c *client.Client, request client.MethodRequest, options ...grpc.DialOption) healthpb.HealthClient {
	server := grpc.NewServer(
		grpc.UnaryInterceptor(c.UnaryServerInterceptor(request)),
		grpc.StreamInterceptor(c.StreamServerInterceptor(request)),
	)
	healthpb.RegisterHealthServer(server, health.NewServer())
	listener := bufconn.Listen(1 << 16)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	options = append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	conn, err := grpc.NewClient("passthrough:test", options...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return healthpb.NewHealthClient(conn)
}

func TestServerInterceptorsShareLimit(t *testing.T) {
	c := clienttest.New(t, limits, clienttest.NewClock(start))
	h := newHealthClient(t, c, tenantOfMethod)
	for range 9 {
		_, err := h.Check(t.Context(), &healthpb.HealthCheckRequest{})
		require.NoError(t, err)
	}
	stream, err := h.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)

	_, err = h.Check(t.Context(), &healthpb.HealthCheckRequest{})
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	stream, err = h.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
}

func TestServerInterceptorsAnswerUnavailableWithoutDecision(t *testing.T) {
	c := clienttest.New(t, limits, nil)
	require.NoError(t, c.Close())
	_, err := newHealthClient(t, c, tenantOfMethod).Check(t.Context(), &healthpb.HealthCheckRequest{})
	assert.Equal(t, codes.Unavailable, status.Code(err))
}

func TestUnaryClientInterceptorHonoursRetryInfo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clienttest.New(t, limits, nil)
		peer := client.PeerLimits{MaxWait: time.Hour}
		h := newHealthClient(t, c, tenantOfMethod, grpc.WithUnaryInterceptor(peer.UnaryInterceptor()))
		begin := time.Now()
		for range 11 {
			_, err := h.Check(t.Context(), &healthpb.HealthCheckRequest{})
			require.NoError(t, err)
		}
		assert.GreaterOrEqual(t, time.Since(begin), time.Minute)
	})
}

func TestUnaryClientInterceptorReturnsErrorAfterMaxWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clienttest.New(t, limits, nil)
		require.NoError(t, c.AcquireN(t.Context(), 10, "shop", tenant))
		peer := client.PeerLimits{MaxWait: 59 * time.Second}
		h := newHealthClient(t, c, tenantOfMethod, grpc.WithUnaryInterceptor(peer.UnaryInterceptor()))
		begin := time.Now()
		_, err := h.Check(t.Context(), &healthpb.HealthCheckRequest{})
		assert.Equal(t, codes.ResourceExhausted, status.Code(err))
		assert.Zero(t, time.Since(begin))
	})
}

func TestClientInterceptorsAcquirePermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clienttest.New(t, limits, nil)
		peerLimits := client.PeerLimits{Client: c, Request: tenantOfMethod}
		unlimited := func(context.Context, string) *client.Request { return nil }
		h := newHealthClient(t, c, unlimited,
			grpc.WithUnaryInterceptor(peerLimits.UnaryInterceptor()), grpc.WithStreamInterceptor(peerLimits.StreamInterceptor()))
		begin := time.Now()
		for range 10 {
			_, err := h.Check(t.Context(), &healthpb.HealthCheckRequest{})
			require.NoError(t, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := h.Watch(ctx, &healthpb.HealthCheckRequest{})
		require.NoError(t, err)
		assert.GreaterOrEqual(t, time.Since(begin), time.Minute)
	})
}

package client_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
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

// requestOfMethod returns the same request for each method.
func requestOfMethod(context.Context, string) *client.Request {
	return &client.Request{Domain: "shop", Descriptors: []client.Descriptor{tenant}}
}

// newHealthClient returns a client of a health service. c limits the calls and streams of the service.
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
	h := newHealthClient(t, c, requestOfMethod)
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
	require.Len(t, status.Convert(err).Details(), 1)
	assert.Equal(t, time.Minute, status.Convert(err).Details()[0].(*errdetails.RetryInfo).GetRetryDelay().AsDuration())
	stream, err = h.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
}

func TestServerInterceptorsAnswerUnavailableWithoutDecision(t *testing.T) {
	c := clienttest.New(t, limits, nil)
	require.NoError(t, c.Close())
	_, err := newHealthClient(t, c, requestOfMethod).Check(t.Context(), &healthpb.HealthCheckRequest{})
	assert.Equal(t, codes.Unavailable, status.Code(err))
}

package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
)

func TestEveryKindOfListenerAnswersCalls(t *testing.T) {
	t.Parallel()
	type listener struct {
		grpc   GRPC
		target func(net.Addr) string
	}
	listeners := map[string]listener{
		"IPv4":        {GRPC{Addr: Addr{Host: "127.0.0.1"}}, net.Addr.String},
		"unix socket": {GRPC{UDS: filepath.Join(t.TempDir(), "rls.sock")}, func(a net.Addr) string { return "unix:" + a.String() }},
	}
	if hasIPv6() {
		listeners["IPv6"] = listener{GRPC{Addr: Addr{Host: "::1"}}, net.Addr.String}
		listeners["any address"] = listener{GRPC{Addr: Addr{Host: "::"}}, func(a net.Addr) string { return fmt.Sprintf("localhost:%d", a.(*net.TCPAddr).Port) }}
	}
	for name, tt := range listeners {
		t.Run(name, func(t *testing.T) {
			server := start(t, Options{GRPC: tt.grpc})
			client := rlsv3.NewRateLimitServiceClient(dial(t, tt.target(server.GRPCAddr())))

			resp, err := client.ShouldRateLimit(t.Context(), shopRequest)
			require.NoError(t, err)
			assert.Equal(t, rlsv3.RateLimitResponse_OK, resp.GetOverallCode())
			assert.EqualValues(t, 7, resp.GetStatuses()[0].GetLimitRemaining())
		})
	}
}

// hasIPv6 reports whether this machine has IPv6.
func hasIPv6() bool {
	listener, err := net.Listen("tcp", "[::1]:0")
	if err == nil {
		_ = listener.Close()
	}
	return err == nil
}

func TestServiceErrorsKeepTheirCode(t *testing.T) {
	t.Parallel()
	server := start(t, Options{Services: servicesOf(serviceFunc(func(context.Context, *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
		return nil, status.Error(codes.InvalidArgument, "no domain")
	}))})
	_, err := server.client(t).ShouldRateLimit(t.Context(), shopRequest)
	assert.Equal(t, status.Error(codes.InvalidArgument, "no domain").Error(), err.Error())
}

func TestTooLargeMessageIsRejected(t *testing.T) {
	t.Parallel()
	server := start(t, Options{GRPC: GRPC{MaxMessageBytes: 1 << 10}})
	client := server.client(t)

	_, err := client.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: strings.Repeat("x", 2<<10)})
	assert.Equal(t, codes.ResourceExhausted, status.Code(err), err)
	_, err = client.ShouldRateLimit(t.Context(), shopRequest)
	assert.NoError(t, err, "the connection is still open")
}

func TestDefaultAcceptsMessagesUpTo1MiB(t *testing.T) {
	t.Parallel()
	server := start(t, Options{})
	client := server.client(t)

	_, err := client.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: strings.Repeat("x", 1<<20-10)})
	assert.NoError(t, err)
	_, err = client.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: strings.Repeat("x", 1<<20)})
	assert.Equal(t, codes.ResourceExhausted, status.Code(err), err)
}

func TestPanicInCallReturnsInternal(t *testing.T) {
	t.Parallel()
	server := start(t, Options{Services: servicesOf(serviceFunc(func(ctx context.Context, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
		if req.GetDomain() == "boom" {
			panic(errors.New("secret detail"))
		}
		return alwaysOK(ctx, req)
	}))})
	client := server.client(t)

	for range 3 {
		_, err := client.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "boom"})
		require.Equal(t, codes.Internal, status.Code(err), err)
		assert.NotContains(t, err.Error(), "secret detail")
	}
	_, err := client.ShouldRateLimit(t.Context(), shopRequest)
	assert.NoError(t, err)
	assert.Contains(t, server.log.String(), "call=ShouldRateLimit")
	assert.Contains(t, server.log.String(), "secret detail")
	assert.Contains(t, server.log.String(), "grpc_test.go", "the log has the stack")
}

// echoService is a second service. Its stream echoes messages, and panics on "boom".
var echoService = grpc.ServiceDesc{
	ServiceName: "test.Echo",
	HandlerType: (*any)(nil),
	Streams: []grpc.StreamDesc{{StreamName: "Echo", ClientStreams: true, ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
		for {
			m := &wrapperspb.StringValue{}
			if err := stream.RecvMsg(m); err != nil {
				return err
			}
			if m.Value == "boom" {
				panic(errors.New("secret detail"))
			}
			if err := stream.SendMsg(m); err != nil {
				return err
			}
		}
	}}},
}

func TestStreamOfSecondServiceRecoversFromPanicAndEndsInDrain(t *testing.T) {
	t.Parallel()
	registerEcho := func(r grpc.ServiceRegistrar) { r.RegisterService(&echoService, struct{}{}) }
	server := start(t, Options{Services: append(servicesOf(alwaysOK), registerEcho), DrainTimeout: time.Minute})
	conn := dial(t, server.GRPCAddr().String())
	echo := func(stream grpc.ClientStream, text string) error {
		require.NoError(t, stream.SendMsg(wrapperspb.String(text)))
		var m wrapperspb.StringValue
		err := stream.RecvMsg(&m)
		if err == nil {
			assert.Equal(t, text, m.Value)
		}
		return err
	}
	openStream := func() grpc.ClientStream {
		stream, err := conn.NewStream(t.Context(), &echoService.Streams[0], "/test.Echo/Echo")
		require.NoError(t, err)
		require.NoError(t, echo(stream, "hello"))
		return stream
	}

	err := echo(openStream(), "boom")
	require.Equal(t, codes.Internal, status.Code(err), err)
	assert.NotContains(t, err.Error(), "secret detail")
	assert.Contains(t, server.log.String(), "call=Echo")
	assert.Contains(t, server.log.String(), "secret detail")
	_, err = rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), shopRequest)
	assert.NoError(t, err, "both services answer on one connection")

	openedStream := openStream()
	server.stop()
	server.waitUntilStopped(t, maxWait)
	assert.Equal(t, codes.Canceled, status.Code(openedStream.RecvMsg(&wrapperspb.StringValue{})), "a drain cancels streams")
}

func TestReflectionListsTheServices(t *testing.T) {
	t.Parallel()
	server := start(t, Options{})
	stream, err := reflectionpb.NewServerReflectionClient(dial(t, server.GRPCAddr().String())).ServerReflectionInfo(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
	}))
	resp, err := stream.Recv()
	require.NoError(t, err)

	var names []string
	for _, s := range resp.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	assert.Contains(t, names, "envoy.service.ratelimit.v3.RateLimitService")
	assert.Contains(t, names, "grpc.health.v1.Health")
}

func TestMaxConnectionAgeRenewsConnectionsWithoutLostCalls(t *testing.T) {
	t.Parallel()
	var clientAddr atomic.Value // the address of the client in the last call
	server := start(t, Options{
		Services: servicesOf(serviceFunc(func(ctx context.Context, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
			p, _ := peer.FromContext(ctx)
			clientAddr.Store(p.Addr.String())
			return alwaysOK(ctx, req)
		})),
		GRPC: GRPC{MaxConnectionAge: 100 * time.Millisecond, MaxConnectionAgeGrace: maxWait},
	})
	client := server.client(t)

	_, err := client.ShouldRateLimit(t.Context(), shopRequest)
	require.NoError(t, err)
	firstAddr := clientAddr.Load()
	polltest.Until(t, maxWait, func() bool {
		_, err := client.ShouldRateLimit(t.Context(), shopRequest)
		return assert.NoError(t, err, "no call is lost") && clientAddr.Load() != firstAddr
	})
}

func TestClientsMayPingOftenWithoutCalls(t *testing.T) {
	t.Parallel()
	server := start(t, Options{})
	conn, err := net.Dial("tcp", server.GRPCAddr().String())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(maxWait)))
	_, err = conn.Write([]byte(http2.ClientPreface))
	require.NoError(t, err)
	framer := http2.NewFramer(conn, conn)
	require.NoError(t, framer.WriteSettings())

	const pings = 5 // the default of grpc allows two pings
	for answeredPings := 0; answeredPings < pings; {
		frame, err := framer.ReadFrame()
		require.NoError(t, err)
		switch f := frame.(type) {
		case *http2.GoAwayFrame:
			require.Fail(t, "the server has closed the connection", "%s after %d pings", f.DebugData(), answeredPings)
		case *http2.SettingsFrame:
			if !f.IsAck() {
				require.NoError(t, framer.WriteSettingsAck())
				require.NoError(t, framer.WritePing(false, [8]byte{}))
			}
		case *http2.PingFrame:
			if f.IsAck() {
				answeredPings++
				time.Sleep(110 * time.Millisecond)
				require.NoError(t, framer.WritePing(false, [8]byte{}))
			}
		}
	}
}

func TestUnaryCallsAreObservedByMethod(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	callsByMethod := map[string]int{}
	server := start(t, Options{
		ObserveMethod: func(name string) func(time.Duration) {
			return func(duration time.Duration) {
				assert.Positive(t, duration)
				mu.Lock()
				defer mu.Unlock()
				callsByMethod[name]++
			}
		},
		Services: servicesOf(serviceFunc(func(_ context.Context, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
			if req.Domain == "panic" {
				panic("boom")
			}
			return &rlsv3.RateLimitResponse{}, nil
		})),
	})
	for _, domain := range []string{"shop", "panic"} {
		_, _ = server.client(t).ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: domain})
	}
	_, err := healthpb.NewHealthClient(dial(t, server.GRPCAddr().String())).Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	polltest.Until(t, 10*time.Second, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return callsByMethod["ShouldRateLimit"] == 2 && callsByMethod["Check"] == 1
	})
}

package server

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
)

func TestMain(m *testing.M) {
	if variant := os.Getenv(benchServerEnv); variant != "" {
		benchServer(variant)
		return
	}
	goleak.VerifyTestMain(m)
}

// maxWait is how long tests wait for events that should happen at once.
const maxWait = 20 * time.Second

// serviceFunc is a function that is a rate-limit service.
type serviceFunc func(context.Context, *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error)

var _ rlsv3.RateLimitServiceServer = serviceFunc(nil)

func (f serviceFunc) ShouldRateLimit(ctx context.Context, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	return f(ctx, req)
}

var alwaysOK = serviceFunc(func(context.Context, *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	return &rlsv3.RateLimitResponse{
		OverallCode: rlsv3.RateLimitResponse_OK,
		Statuses: []*rlsv3.RateLimitResponse_DescriptorStatus{
			{Code: rlsv3.RateLimitResponse_OK, LimitRemaining: 7},
		},
	}, nil
})

// servicesOf returns Options.Services for one rate-limit service.
func servicesOf(s rlsv3.RateLimitServiceServer) []func(grpc.ServiceRegistrar) {
	return []func(grpc.ServiceRegistrar){func(r grpc.ServiceRegistrar) { rlsv3.RegisterRateLimitServiceServer(r, s) }}
}

var shopRequest = &rlsv3.RateLimitRequest{
	Domain: "shop",
	Descriptors: []*ratelimitv3.RateLimitDescriptor{{
		Entries: []*ratelimitv3.RateLimitDescriptor_Entry{
			{Key: "remote_address", Value: "192.0.2.17"},
			{Key: "path", Value: "/checkout"},
		},
	}},
}

// testServer is a running Server.
type testServer struct {
	*Server
	stop context.CancelFunc
	done chan error // gets the result of Serve
	log  *logBuffer
}

// withDefaults returns o with values for the required options that o does not set.
func withDefaults(o Options) Options {
	o.Health = cmp.Or(o.Health, NewHealth())
	o.Log = cmp.Or(o.Log, slog.Default())
	o.Observer = cmp.Or[Observer](o.Observer, noObserver{})
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 20*time.Second)
	o.GRPC.MaxMessageBytes = cmp.Or(o.GRPC.MaxMessageBytes, 1<<20)
	o.GRPC.MaxStreams = cmp.Or(o.GRPC.MaxStreams, 1024)
	if o.Metrics != nil {
		o.Metrics.Path = cmp.Or(o.Metrics.Path, "/metrics")
	}
	return o
}

func newServer(o Options) (*Server, error) { return New(withDefaults(o)) }

type noObserver struct{}

func (noObserver) DrainStarted(int64)                   {}
func (noObserver) DrainFinished(int64)                  {}
func (noObserver) TLSReloaded(string, string, error)    {}
func (noObserver) CertificateInForce(string, time.Time) {}

// start serves o on free ports of 127.0.0.1 until the test ends.
func start(t *testing.T, options Options) *testServer {
	t.Helper()
	r := &testServer{log: &logBuffer{}, done: make(chan error, 1)}
	if options.Services == nil {
		options.Services, options.JSON = servicesOf(alwaysOK), alwaysOK
	}
	if options.Log == nil {
		options.Log = slog.New(slog.NewTextHandler(r.log, nil))
	}
	addrs := []*Addr{&options.GRPC.Addr, &options.HTTP, &options.Debug}
	if options.Metrics != nil {
		addrs = append(addrs, &options.Metrics.Addr)
	}
	for _, a := range addrs {
		if a.Host == "" {
			a.Host = "127.0.0.1"
		}
	}
	var err error
	r.Server, err = newServer(options)
	require.NoError(t, err)

	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() { r.done <- r.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-r.done:
			assert.NoError(t, err)
		case <-time.After(2 * maxWait):
			t.Error("Serve does not return")
		}
	})
	return r
}

// waitUntilStopped waits up to d until Serve returns.
func (r *testServer) waitUntilStopped(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case err := <-r.done:
		r.done <- nil // the clean-up waits for a result too
		require.NoError(t, err)
	case <-time.After(d):
		require.Fail(t, "Serve does not return")
	}
}

// waitForLog waits until the log contains want.
func (r *testServer) waitForLog(t *testing.T, want string) {
	t.Helper()
	polltest.Until(t, maxWait, func() bool { return strings.Contains(r.log.String(), want) }, want)
}

func (r *testServer) client(t *testing.T) rlsv3.RateLimitServiceClient {
	return rlsv3.NewRateLimitServiceClient(dial(t, r.GRPCAddr().String()))
}

// dial connects to target. The connection uses plain text, unless opts contains other credentials.
func dial(t testing.TB, target string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	opts = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, opts...)
	c, err := grpc.NewClient(target, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// request sends an HTTP request on a new connection.
func request(t *testing.T, method string, addr net.Addr, path, body string) (status int, header http.Header, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr.String()+path, bytes.NewBufferString(body))
	require.NoError(t, err)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	content, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, resp.Header, string(content)
}

// logBuffer collects log lines of concurrent writers.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// DebugAddr returns the address of the debug listener, or nil if the address was in use.
func (s *Server) DebugAddr() net.Addr { return s.addrOf("debug") }

// MetricsAddr returns the address of the metrics listener, or nil without Options.Metrics.
func (s *Server) MetricsAddr() net.Addr { return s.addrOf("metrics") }

func (s *Server) addrOf(name string) net.Addr {
	if l := s.optionalListener(name); l != nil {
		return l.listener.Addr()
	}
	return nil
}

// optionalListener returns the listener with this name, or nil.
func (s *Server) optionalListener(name string) *httpListener {
	for _, l := range s.optionalListeners {
		if l.name == name {
			return l
		}
	}
	return nil
}

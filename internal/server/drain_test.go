package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
)

// slowService is a service. Its calls wait until release is closed or their context is done.
type slowService struct {
	callStarted, release chan struct{}
}

func newSlowService() *slowService {
	return &slowService{callStarted: make(chan struct{}, 16), release: make(chan struct{})}
}

func (s *slowService) ShouldRateLimit(ctx context.Context, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	s.callStarted <- struct{}{}
	select {
	case <-s.release:
		return alwaysOK(ctx, req)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// postJSON posts to /json on a new connection and returns an error unless the status is 200.
func postJSON(addr net.Addr) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Post("http://"+addr.String()+"/json", "application/json", strings.NewReader(`{"domain":"shop"}`))
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

func refusesConnections(addr net.Addr) bool {
	c, err := net.Dial(addr.Network(), addr.String())
	if err == nil {
		_ = c.Close()
	}
	return err != nil
}

func TestShutdownFinishesCallsInFlightAndRefusesNewCalls(t *testing.T) {
	t.Parallel()
	service := newSlowService()
	health := NewHealth()
	server := start(t, Options{
		Services: servicesOf(service), JSON: service, Health: health, Metrics: &MetricsListener{Handler: healthHandler(health)}, DrainTimeout: time.Minute,
	})
	client := server.client(t)

	results := make(chan error, 2)
	go func() {
		_, err := client.ShouldRateLimit(t.Context(), shopRequest)
		results <- err
	}()
	go func() {
		results <- postJSON(server.HTTPAddr())
	}()
	<-service.callStarted
	<-service.callStarted
	server.stop()

	for _, addr := range []net.Addr{server.GRPCAddr(), server.HTTPAddr()} {
		polltest.Until(t, maxWait, func() bool { return refusesConnections(addr) })
	}
	faults, _ := health.Lines()
	assert.Equal(t, []string{"server: shutting down"}, faults)
	assert.False(t, refusesConnections(server.DebugAddr()), "the debug listener stays to the end")
	_, _, body := request(t, http.MethodGet, server.MetricsAddr(), "/metrics", "")
	assert.Contains(t, body, "shutting down", "the metrics listener stays to the end")
	_, err := server.client(t).ShouldRateLimit(t.Context(), shopRequest)
	assert.Equal(t, codes.Unavailable, status.Code(err), err)

	close(service.release)
	assert.NoError(t, <-results)
	assert.NoError(t, <-results)
	server.waitUntilStopped(t, maxWait)
	assert.True(t, refusesConnections(server.DebugAddr()))
	assert.True(t, refusesConnections(server.MetricsAddr()))
	assert.Contains(t, server.log.String(), `msg="drain started" calls_in_flight=2 `)
	assert.Regexp(t, `msg="drain finished" took=\S+ calls_cut=0\n`, server.log.String())
	assert.Contains(t, server.log.String(), `level=WARN msg="readiness changed" ready=false reason="server: shutting down"`)
}

func TestShutdownDoesNotWaitForStreams(t *testing.T) {
	t.Parallel()
	server := start(t, Options{DrainTimeout: time.Minute})
	conn := dial(t, server.GRPCAddr().String())

	watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	resp, err := watch.Recv()
	require.NoError(t, err)
	assert.Equal(t, healthpb.HealthCheckResponse_SERVING, resp.GetStatus())

	reflection, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	require.NoError(t, err)
	require.NoError(t, reflection.Send(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
	}))
	_, err = reflection.Recv()
	require.NoError(t, err)

	server.stop()
	server.waitUntilStopped(t, maxWait)
	_, err = reflection.Recv()
	assert.Equal(t, codes.Canceled, status.Code(err), err)
	for err = nil; err == nil; _, err = watch.Recv() {
		// Skip NOT_SERVING, which watch may receive before the end.
	}
	assert.Equal(t, codes.Canceled, status.Code(err), err)
}

// eventRecorder is an Observer.
type eventRecorder struct {
	mu     sync.Mutex
	events []string
}

func (r *eventRecorder) add(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf(format, args...))
}

func (r *eventRecorder) recordedEvents() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

func (r *eventRecorder) DrainStarted(calls int64)     { r.add("drain started: %d", calls) }
func (r *eventRecorder) DrainFinished(cutCalls int64) { r.add("drain finished: %d", cutCalls) }
func (r *eventRecorder) TLSReloaded(listener, subject string, err error) {
	r.add("%s %s %t", listener, subject, err == nil)
}

func (r *eventRecorder) CertificateInForce(listener string, expiry time.Time) {
	r.add("%s expires %v", listener, expiry)
}

func TestDrainTimeoutCutsCalls(t *testing.T) {
	t.Parallel()
	service := newSlowService()
	events := &eventRecorder{}
	server := start(t, Options{Services: servicesOf(service), DrainTimeout: 50 * time.Millisecond, Observer: events})
	client := server.client(t)

	results := make(chan error, 1)
	go func() {
		_, err := client.ShouldRateLimit(t.Context(), shopRequest)
		results <- err
	}()
	<-service.callStarted
	server.stop()
	server.waitUntilStopped(t, maxWait)
	assert.Equal(t, codes.Unavailable, status.Code(<-results))
	assert.Contains(t, server.log.String(), "gRPC calls cut at the drain timeout")
	assert.Regexp(t, `msg="drain finished" took=\S+ calls_cut=1\n`, server.log.String())
	assert.Equal(t, []string{"drain started: 1", "drain finished: 1"}, events.recordedEvents())
}

func TestDrainTimeoutCutsHTTPRequests(t *testing.T) {
	t.Parallel()
	service := newSlowService()
	server := start(t, Options{Services: servicesOf(service), JSON: service, DrainTimeout: 50 * time.Millisecond})

	results := make(chan error, 1)
	go func() { results <- postJSON(server.HTTPAddr()) }()
	<-service.callStarted
	server.stop()
	server.waitUntilStopped(t, maxWait)
	assert.Error(t, <-results)
}

func TestServerAnswersCallsDuringDrainDelay(t *testing.T) {
	t.Parallel()
	server := start(t, Options{DrainDelay: 3 * time.Second})
	conn := dial(t, server.GRPCAddr().String())
	server.stop()

	polltest.Until(t, maxWait, func() bool {
		resp, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		return err == nil && resp.GetStatus() == healthpb.HealthCheckResponse_NOT_SERVING
	})
	code, _, body := request(t, http.MethodGet, server.HTTPAddr(), "/healthcheck", "")
	assert.Equal(t, 500, code)
	assert.Equal(t, "server: shutting down\n", body)
	_, err := server.client(t).ShouldRateLimit(t.Context(), shopRequest)
	assert.NoError(t, err, "the server accepts new connections")
	server.waitUntilStopped(t, maxWait)
}

// By default, grpc waits two minutes for a connection that never sends, such as a TCP probe.
func TestSilentConnectionDelaysShutdownByHandshakeTimeout(t *testing.T) {
	t.Parallel()
	server := start(t, Options{DrainTimeout: time.Minute})
	c, err := net.Dial("tcp", server.GRPCAddr().String())
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	_, err = server.client(t).ShouldRateLimit(t.Context(), shopRequest) // after this call, the server has accepted c
	require.NoError(t, err)
	server.stop()
	server.waitUntilStopped(t, handshakeTimeout+maxWait)
}

func TestServeReturnsIfContextIsDone(t *testing.T) {
	t.Parallel()
	freePort := Addr{Host: "127.0.0.1"}
	server, err := newServer(Options{Services: servicesOf(alwaysOK), GRPC: GRPC{Addr: freePort}, HTTP: freePort, Debug: freePort})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, server.Serve(ctx))
	assert.True(t, refusesConnections(server.GRPCAddr()))
}

func TestCloseReleasesServerThatNeverServed(t *testing.T) {
	t.Parallel()
	freePort := Addr{Host: "127.0.0.1"}
	server, err := newServer(Options{
		Services: servicesOf(alwaysOK), GRPC: GRPC{Addr: freePort}, HTTP: freePort, Debug: freePort,
		Metrics: &MetricsListener{Addr: freePort, Handler: http.NotFoundHandler()},
	})
	require.NoError(t, err)
	server.Close()
	for _, addr := range []net.Addr{server.GRPCAddr(), server.HTTPAddr(), server.DebugAddr(), server.MetricsAddr()} {
		assert.True(t, refusesConnections(addr))
	}
}

func TestServeReturnsErrorOfFailedListener(t *testing.T) {
	t.Parallel()
	freePort := Addr{Host: "127.0.0.1"}
	for name, listener := range map[string]func(*Server) net.Listener{
		"gRPC listener": func(s *Server) net.Listener { return s.grpcListener },
		"HTTP listener": func(s *Server) net.Listener { return s.http.listener },
	} {
		t.Run(name, func(t *testing.T) {
			server, err := newServer(Options{Services: servicesOf(alwaysOK), GRPC: GRPC{Addr: freePort}, HTTP: freePort, Debug: freePort})
			require.NoError(t, err)
			require.NoError(t, listener(server).Close())
			assert.ErrorContains(t, server.Serve(t.Context()), name)
			assert.True(t, refusesConnections(server.GRPCAddr()))
		})
	}
}

func TestServeSurvivesFailedDebugAndMetricsListeners(t *testing.T) {
	t.Parallel()
	freePort := Addr{Host: "127.0.0.1"}
	var log logBuffer
	server, err := newServer(Options{
		Services: servicesOf(alwaysOK), JSON: alwaysOK, GRPC: GRPC{Addr: freePort}, HTTP: freePort, Debug: freePort,
		Metrics: &MetricsListener{Addr: freePort, Handler: http.NotFoundHandler()},
		Log:     slog.New(slog.NewTextHandler(&log, nil)),
	})
	require.NoError(t, err)
	require.NoError(t, server.optionalListener("debug").listener.Close())
	require.NoError(t, server.optionalListener("metrics").listener.Close())

	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- server.Serve(ctx) }()
	for _, name := range []string{"debug listener: ", "metrics listener: "} {
		polltest.Until(t, maxWait, func() bool { return strings.Contains(log.String(), name) })
	}
	assert.NoError(t, postJSON(server.HTTPAddr()))
	stop()
	assert.NoError(t, <-done)
}

func TestDrainWarnsOfCallsAtTheEndOfTheDelay(t *testing.T) {
	for name, tt := range map[string]struct {
		callsUntil time.Duration
		warns      bool
	}{
		"calls end in time": {8 * time.Second, false},
		"calls go on":       {9500 * time.Millisecond, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log logBuffer
				server := &Server{options: Options{Log: slog.New(slog.NewTextHandler(&log, nil))}}
				go func() {
					for range tt.callsUntil / (100 * time.Millisecond) {
						server.calls.beginCall()
						server.calls.endCall()
						time.Sleep(100 * time.Millisecond)
					}
				}()
				server.serveDuringDelay(10 * time.Second)
				assert.Equal(t, tt.warns, strings.Contains(log.String(), "calls still arrive at the end of the drain delay"), log.String())
			})
		})
	}
}

func TestDrainDoesNotCountHealthChecks(t *testing.T) {
	t.Parallel()
	server := start(t, Options{})
	oldTotal := server.calls.total.Load()
	_, err := healthpb.NewHealthClient(dial(t, server.GRPCAddr().String())).Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	assert.Equal(t, oldTotal, server.calls.total.Load())
}

func TestInterruptSkipsDelay(t *testing.T) {
	t.Parallel()
	freePort := Addr{Host: "127.0.0.1"}
	server, err := newServer(Options{Services: servicesOf(alwaysOK), GRPC: GRPC{Addr: freePort}, HTTP: freePort, Debug: freePort, DrainDelay: time.Hour})
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ErrInterrupted)
	require.NoError(t, server.Serve(ctx))
}

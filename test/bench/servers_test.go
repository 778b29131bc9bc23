package bench

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/observe/events"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/server"
	"github.com/seed-81f232ab/rls/service"
)

// serverKindEnv is the environment variable with the kind of server that this test binary runs.
const serverKindEnv = "RLS_BENCH_SERVER"

var serverKinds = []struct {
	name  string
	serve func(ctx context.Context) error
}{
	{"nothing-stock", serveNothingStock},
	{"nothing-tuned", serveNothingTuned},
	{"rls-local", serveLocal},
}

func TestMain(m *testing.M) {
	if os.Getenv(waitersEnv) != "" {
		if err := runWaiters(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	kind := os.Getenv(serverKindEnv)
	if kind == "" {
		os.Exit(m.Run())
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { // ends with the parent
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	for _, s := range serverKinds {
		if s.name != kind {
			continue
		}
		if err := s.serve(ctx); err != nil {
			fmt.Fprintln(os.Stderr, kind, err)
			os.Exit(1)
		}
	}
	os.Exit(0)
}

// nothing answers OK without reading the request.
type nothing struct {
	rlsv3.UnimplementedRateLimitServiceServer
}

func (nothing) ShouldRateLimit(context.Context, *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	return &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_OK}, nil
}

// serveNothingStock serves nothing with the stock options of grpc-go.
func serveNothingStock(ctx context.Context) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	rlsv3.RegisterRateLimitServiceServer(server, nothing{})
	context.AfterFunc(ctx, server.Stop)
	fmt.Println(listener.Addr())
	return server.Serve(listener)
}

// serveNothingTuned serves nothing with our options.
func serveNothingTuned(ctx context.Context) error { return serveOurs(ctx, nothing{}) }

// serveLocal serves the whole service, which counts in the process.
func serveLocal(ctx context.Context) error {
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "bench.yaml", Data: []byte(benchLimits)}}, limitsfile.Options{})
	if err != nil {
		return err
	}
	store := new(descriptors.Store)
	store.Set(descriptors.Compile(set))
	return serveOurs(ctx, service.New(service.Options{Limits: store, Limiter: local.New(local.Options{})}))
}

// benchLimits has a limit that no load reaches, and a limit for runs that count admitted hits.
const benchLimits = `
domain: bench
descriptors:
  - key: service
    value: checkout
    descriptors:
      - key: ip
        rate_limit: {unit: hour, requests_per_unit: 100000000}
  - key: service
    value: exact
    descriptors:
      - key: ip
        rate_limit: {unit: second, requests_per_unit: 300}
`

func serveOurs(ctx context.Context, svc rlsv3.RateLimitServiceServer) error {
	debug.SetGCPercent(400) // as rls serve does
	host := server.Addr{Host: "127.0.0.1"}
	health, log := server.NewHealth(), slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	testServer, err := server.New(server.Options{
		Services: []func(grpc.ServiceRegistrar){func(r grpc.ServiceRegistrar) { rlsv3.RegisterRateLimitServiceServer(r, svc) }},
		GRPC:     server.GRPC{Addr: host, MaxMessageBytes: 1 << 20, MaxStreams: 1024},
		HTTP:     host,
		Debug:    host,
		Health:   health,
		Observer: events.New(events.Options{Metrics: metrics.New(), Health: health, Log: log}),
		Log:      log,

		DrainTimeout: 20 * time.Second,
	})
	if err != nil {
		return err
	}
	fmt.Println(testServer.GRPCAddr())
	return testServer.Serve(ctx)
}

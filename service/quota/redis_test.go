package quota

import (
	"context"
	"net"
	"testing"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, redistest.IgnoreShared()...) }

// grpcLink is a stream over gRPC.
type grpcLink struct {
	rlqsv3.RateLimitQuotaService_StreamRateLimitQuotasClient
	conn   *grpc.ClientConn
	cancel context.CancelFunc
}

func (l *grpcLink) send(m *rlqsv3.RateLimitQuotaUsageReports) error { return l.Send(m) }

func (l *grpcLink) receive() (*rlqsv3.RateLimitQuotaResponse, error) { return l.Recv() }

func (l *grpcLink) close() {
	l.cancel()
	_ = l.conn.Close()
}

func dial(t *testing.T, addr string) link {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := rlqsv3.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(ctx)
	require.NoError(t, err)
	l := &grpcLink{stream, conn, cancel}
	t.Cleanup(l.close)
	return l
}

// serve serves a replica over gRPC until the test ends, or until kill is called.
func serve(t *testing.T, o Options) (addr string, kill func()) {
	t.Helper()
	_, addr, kill = serveService(t, o)
	return addr, kill
}

func serveService(t *testing.T, o Options) (s *Service, addr string, kill func()) {
	t.Helper()
	s, stop := startReplica(t, o)
	server := grpc.NewServer()
	rlqsv3.RegisterRateLimitQuotaServiceServer(server, s)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = server.Serve(listener) }()
	kill = func() {
		server.Stop()
		stop()
	}
	t.Cleanup(kill)
	return s, listener.Addr().String(), kill
}

func TestLimitHoldsOverRealRedis(t *testing.T) {
	server := redistest.Start(t)
	newReplica := func() (addr string, kill func()) {
		store, err := redis.NewQuotas(redis.Server{URL: server.Addr}, "", 200*time.Millisecond)
		require.NoError(t, err)
		t.Cleanup(func() { _ = store.Close() })
		go store.KeepMarks(t.Context())
		o := newOptions(t, store, "")
		o.Limits.Set(withShortTTL(t))
		return serve(t, o)
	}
	addressA, killA := newReplica()
	addressB, _ := newReplica()
	m := newMeter(100, 100)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	envoys := []*fakeEnvoy{newFakeEnvoy(m, 200), newFakeEnvoy(m, 40), newFakeEnvoy(m, 5)}
	for i, e := range envoys {
		e.reportInterval = 1200 * time.Millisecond // shorter than Envoy's, so that the test is short
		e.connect(dial(t, []string{addressA, addressB, addressA}[i]))
		go e.run(ctx)
	}
	checkUseAfter := func(name string, act func()) {
		act()
		startTime := time.Now()
		time.Sleep(8 * time.Second)
		polltest.Until(t, 22*time.Second, func() bool {
			use := m.measureUse(2 * time.Second)
			t.Logf("%s: %.3f of the limit after %.0f s", name, use, time.Since(startTime).Seconds())
			return use >= 0.85
		}, name)
		requireBound(t, m, 3)
	}
	checkUseAfter("start", func() { time.Sleep(2 * time.Second) })
	assert.Positive(t, redistest.RequireAllExpire(t, server))
	checkUseAfter("the demand swaps", func() { envoys[0].setDemand(5); envoys[2].setDemand(200) })
	checkUseAfter("FLUSHALL", func() { require.NoError(t, server.Client(t).FlushAll(t.Context()).Err()) })
	checkUseAfter("kill -9 of Redis", func() { server.Kill(); server.Restart(t) })
	checkUseAfter("the end of a replica", func() {
		killA()
		for _, e := range envoys {
			e.connect(dial(t, addressB))
		}
	})
}

// withShortTTL returns sharedLimits with a shorter TTL than limits files allow.
func withShortTTL(t *testing.T) *descriptors.Config {
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "f", Data: []byte(sharedLimits)}}, limitsfile.Options{})
	require.NoError(t, err)
	set.Domains[0].Descriptors[0].Quota.TTL = 3_500_000
	return descriptors.Compile(set)
}

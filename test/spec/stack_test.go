package spec

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/denycache"
	"github.com/seed-81f232ab/rls/backend/fallback"
	"github.com/seed-81f232ab/rls/backend/lease"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	rlslimit "github.com/seed-81f232ab/rls/limit"
)

// servers are the Redis servers of all stacks.
type servers struct {
	single, perSecond *redistest.Server
	cluster           *redistest.RedisCluster
}

func startServers(tb testing.TB) *servers {
	return &servers{redistest.Start(tb), redistest.Start(tb), redistest.StartCluster(tb, 3, false)}
}

// clear deletes all keys.
func (s *servers) clear(tb testing.TB) {
	for _, server := range append([]*redistest.Server{s.single, s.perSecond}, s.cluster.Masters...) {
		require.NoError(tb, server.Client(tb).FlushAll(context.Background()).Err())
	}
}

// replica is the backend of one process, composed as in cmd/rls/backend.go. Redis and its fallback have a
// real clock. So the breaker never opens, because the virtual clock is far ahead of the real clock.
type replica struct {
	limiter backend.Limiter
	redis   *backendtest.Flaky // nil if the counters are local
	close   func()
}

// stack is some replicas that share Redis.
type stack struct {
	replicas []*replica
	now      atomic.Int64 // the virtual clock, in microseconds since 1970
}

var lastPrefix atomic.Int64

// newStack returns a stack without counters.
func newStack(tb testing.TB, s *settings, servers *servers) *stack {
	prefix := fmt.Sprintf("s%d:", lastPrefix.Add(1))
	stack := &stack{}
	for range s.replicas {
		stack.replicas = append(stack.replicas, newReplica(tb, s, servers, prefix, &stack.now))
	}
	return stack
}

func (s *stack) close() {
	for _, replica := range s.replicas {
		replica.close()
	}
}

// setOutage makes Redis fail for all replicas, or ends the failure.
func (s *stack) setOutage(isOut bool) {
	var err error
	if isOut {
		err = fmt.Errorf("%w: %w", backend.ErrUnavailable, errOutage)
	}
	for _, replica := range s.replicas {
		replica.redis.SetError(err)
	}
}

var errOutage = errors.New("outage of the test")

func newReplica(tb testing.TB, s *settings, servers *servers, prefix string, clock *atomic.Int64) *replica {
	counters := local.New(local.Options{MaxKeys: 100_000})
	if s.redis == "local" {
		return &replica{limiter: counters, close: func() {}}
	}
	o := redis.Options{
		KeyPrefix: prefix, Timeout: 10 * time.Second, CallersClock: true,
		Jitter: 365 * 24 * time.Hour, // Redis forgets keys by the real clock, which must not happen during a trace
	}
	switch s.redis {
	case "single":
		o.Main = redis.Server{URL: servers.single.Addr}
	case "cluster":
		o.Main = redis.Server{URL: servers.cluster.URL(), Kind: redis.Cluster}
	}
	if s.perSecond {
		o.PerSecond = &redis.Server{URL: servers.perSecond.Addr}
	}
	client, err := redis.New(o)
	require.NoError(tb, err)
	flaky := backendtest.NewFlaky(&oneTimeAtOnce{next: client})
	withFallback := fallback.New(fallback.Options{
		Primary: flaky, Secondary: counters, Ratio: fallbackRatio, Mode: rlslimit.FailLocal,
		Shards: client.Shards(), ShardOf: client.ShardOf, Probe: client.Probe,
		KeepsCounters: client.HasKeptCounters, LastCount: client.TakeLastCount, Observer: noEvents{},
	})
	var sharedLayer backend.Layer = withFallback
	if s.denyCache {
		sharedLayer = denycache.New(sharedLayer, denycache.Options{SizeBytes: 1 << 16})
	}
	leases := lease.New(lease.Options{
		Next: sharedLayer, Source: atClock{flaky, clock},
		IsFailing: func(h *backend.Hit) bool { return !withFallback.FailingSince(h).IsZero() },
	})
	return &replica{
		limiter: backend.Scopes{Shared: leases, Instance: backend.Counters{Limiter: counters}}, redis: flaky,
		close: func() { leases.Close(); withFallback.Close(); _ = client.Close() },
	}
}

// oneTimeAtOnce is a Limiter whose concurrent Takes have the same time. All hits of a batch have one time.
type oneTimeAtOnce struct {
	next backend.Limiter

	mu    sync.Mutex
	now   time.Time
	takes int // in flight, at now
	idle  chan struct{}
}

// Take implements backend.Limiter.
func (o *oneTimeAtOnce) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	o.mu.Lock()
	for o.takes > 0 && !now.Equal(o.now) {
		idleSignal := o.idle
		o.mu.Unlock()
		<-idleSignal
		o.mu.Lock()
	}
	if o.takes == 0 {
		o.now, o.idle = now, make(chan struct{})
	}
	o.takes++
	o.mu.Unlock()
	o.next.Take(ctx, now, hits, results)
	o.mu.Lock()
	if o.takes--; o.takes == 0 {
		close(o.idle)
	}
	o.mu.Unlock()
}

// atClock is a Limiter that takes at the time of the virtual clock. Leases take permits in the background, at
// a later time than that of the hit that has caused it.
type atClock struct {
	backend.Limiter
	clock *atomic.Int64
}

// Take implements backend.Limiter.
func (a atClock) Take(ctx context.Context, _ time.Time, hits []backend.Hit, results []backend.Result) {
	a.Limiter.Take(ctx, time.UnixMicro(a.clock.Load()), hits, results)
}

// noEvents is a fallback.Observer that keeps nothing.
type noEvents struct{}

func (noEvents) StateChanged(fallback.StateChange)     {}
func (noEvents) BreakerChanged(fallback.BreakerChange) {}
func (noEvents) BlipEnded(fallback.Outage)             {}
func (noEvents) HitsServed(int)                        {}
func (noEvents) HitsReplayed(int64)                    {}

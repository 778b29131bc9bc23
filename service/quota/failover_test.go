package quota

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// A failover takes longer than a share lasts here, so the fallback divides half of the limit until Redis is back.
func TestLimitHoldsOverASentinelFailover(t *testing.T) {
	sentinels := redistest.StartSentinels(t)
	server := redis.Server{Kind: redis.Sentinel, URL: sentinels.URL()}
	var services []*Service
	var addrs []string
	for range 2 {
		store, err := redis.NewQuotas(server, "", 200*time.Millisecond)
		require.NoError(t, err)
		t.Cleanup(func() { _ = store.Close() })
		go store.KeepMarks(t.Context())
		o := newOptions(t, store, "")
		o.Limits.Set(withShortTTL(t))
		s, addr, _ := serveService(t, o)
		services, addrs = append(services, s), append(addrs, addr)
	}
	m := newMeter(100, 100)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i, demand := range []float64{200, 40} {
		e := newFakeEnvoy(m, demand)
		e.reportInterval = 1200 * time.Millisecond
		e.connect(dial(t, addrs[i]))
		go e.run(ctx)
	}
	updates := func() uint64 { return min(services[0].Stats().Updates, services[1].Stats().Updates) }
	polltest.Until(t, time.Minute, func() bool { return m.measureUse(2*time.Second) > 0.85 })
	sentinels.Master.AwaitReplica(t)

	sentinels.Master.Kill()
	updatesBefore := updates()
	failuresBefore := services[0].Stats().Failures
	start := time.Now()
	polltest.Until(t, time.Minute, func() bool { return updates() > updatesBefore+5 })
	t.Logf("updates again after %v", time.Since(start))
	assert.Greater(t, services[0].Stats().Failures, failuresBefore)
	polltest.Until(t, time.Minute, func() bool { return m.measureUse(2*time.Second) > 0.85 })
	for _, s := range services {
		assert.Zero(t, s.Stats().Fallbacks)
	}
	requireBound(t, m, 3)
}

package reload_test

import (
	"context"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/limit"
)

// forEachBackend runs f with counters in this process, and in Redis.
func forEachBackend(t *testing.T, f func(t *testing.T, counters backend.Limiter)) {
	t.Run("local", func(t *testing.T) {
		t.Parallel()
		f(t, local.New(local.Options{MaxKeys: 1000}))
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		db := redistest.Open(t)
		counters, err := redis.New(redis.Options{Main: redis.Server{URL: db.Addr}, KeyPrefix: db.Prefix, Timeout: 20 * time.Second})
		require.NoError(t, err)
		t.Cleanup(func() { _ = counters.Close() })
		f(t, counters)
	})
}

// take charges n hits to the counter of tenant acme.
func (r *fixture) take(counters backend.Limiter, n int64) limit.Result {
	r.t.Helper()
	entries := []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "tenant", Value: "acme"}}
	rule := r.store.Load().Domain("shop").Match(entries)
	hits := []backend.Hit{{Key: rule.AppendKey(nil, "shop", entries), Limit: rule.Limits[0].Limit, N: n}}
	results := make([]backend.Result, 1)
	counters.Take(context.Background(), time.Now(), hits, results)
	require.NoError(r.t, results[0].Err)
	return results[0].Result
}

// takeUntilDenied charges single hits until a hit is denied. It returns the number of admitted hits.
func (r *fixture) takeUntilDenied(counters backend.Limiter) (count int) {
	for r.take(counters, 1).Allowed {
		count++
	}
	return count
}

func limitsWith(fields string) string {
	return "domain: shop\ndescriptors: [{key: tenant, rate_limit: {" + fields + "}}]\n"
}

// TestChangedNumberKeepsCounter loads a limit, charges 60 hits, and then loads one limit after the other. Each step has
// the hits that then remain, and says whether the limit keeps its counter.
func TestChangedNumberKeepsCounter(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, counters backend.Limiter) {
		fixture := newFixture(t)
		fixture.load(limitsWith("unit: year, requests_per_unit: 100"))
		fixture.take(counters, 60)
		for _, step := range []struct {
			fields    string
			remaining int64
			logText   string
		}{
			{"unit: year, requests_per_unit: 200", 140, "counters=kept"},
			{"unit: year, requests_per_unit: 100, algorithm: sliding_log", 100, "counters=new"},
			{"unit: year, requests_per_unit: 200, algorithm: token_bucket", 200, "counters=new"},
			{"unit: year, requests_per_unit: 200, scope: instance", 200, "counters=new"},
			{"unit: month, requests_per_unit: 80", 80, "counters=new"},
			{"unit: year, requests_per_unit: 90", 30, "counters=new"}, // the first counter resumes
		} {
			fixture.load(limitsWith(step.fields))
			assert.Equal(t, step.remaining, fixture.take(counters, 0).Remaining, step.fields)
			assert.Contains(t, fixture.lastLine(), step.logText, step.fields)
		}
	})
}

// TestChangeAdmitsAtMostOldAndNewLimitTogether changes the algorithm of a spent limit by an override and by a reload.
// After each change, it restores the algorithm.
func TestChangeAdmitsAtMostOldAndNewLimitTogether(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, counters backend.Limiter) {
		fixture := newFixture(t)
		fixture.load(limitsWith("unit: year, requests_per_unit: 10, charge_denied: false"))
		assert.Equal(t, 10, fixture.takeUntilDenied(counters))
		fixture.override("shop|tenant=acme", `{"algorithm": "sliding_log", "requests_per_unit": 20}`)
		assert.Equal(t, 20, fixture.takeUntilDenied(counters))
		fixture.override()
		assert.Zero(t, fixture.takeUntilDenied(counters), "the old counter resumes")
		fixture.load(limitsWith("unit: year, requests_per_unit: 5, algorithm: sliding_window"))
		assert.Equal(t, 5, fixture.takeUntilDenied(counters))
		fixture.load(limitsWith("unit: year, requests_per_unit: 10, charge_denied: false"))
		assert.Zero(t, fixture.takeUntilDenied(counters))
	})
}

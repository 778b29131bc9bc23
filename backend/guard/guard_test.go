package guard_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/guard"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/limit"
)

// fixture is a guard in front of a Limiter that counts its Takes.
type fixture struct {
	*guard.Limiter
	next   *backendtest.Flaky
	shared *local.Limiter
}

func newFixture(ratio float64) fixture {
	shared := local.New(local.Options{})
	next := backendtest.NewFlaky(shared)
	return fixture{guard.New(guard.Options{Next: next, Counters: local.New(local.Options{}), Ratio: ratio}), next, shared}
}

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

func take(l backend.Limiter, at time.Duration, hits ...backend.Hit) []backend.Result {
	results := make([]backend.Result, len(hits))
	l.Take(context.Background(), noon.Add(at), hits, results)
	return results
}

// newLimit returns a limit of n per minute that charges denied hits.
func newLimit(t require.TestingT, a limit.Algorithm, n uint32) *limit.Limit {
	return backendtest.NewLimit(t, limit.Spec{Algorithm: a, Requests: n, Unit: limit.Minute, ChargeDenied: true})
}

func hit(l *limit.Limit, n int64) backend.Hit { return backend.Hit{Key: []byte("k"), Limit: l, N: n} }

func TestGuardBelowItsRatioAnswersAsALimiter(t *testing.T) {
	t.Parallel()
	backendtest.RunWrapper(t, func(*testing.T) backend.Limiter { return newFixture(1e10) })
}

func TestGuardDeniesWithoutTheBackendFromItsRatioOn(t *testing.T) {
	r, lim := newFixture(1.2), newLimit(t, limit.FixedWindow, 10)
	for n := range 20 {
		got := take(r, 15*time.Second, hit(lim, 1))[0]
		require.NoError(t, got.Err)
		assert.Equal(t, n < 10, got.Allowed, n)
		if n >= 12 {
			assert.Equal(t, backend.Result{Source: backend.SourceGuard, Result: limit.Result{Remaining: -2, ResetAfter: 45_000_000, RetryAfter: 45_000_000}}, got)
		}
	}
	assert.Equal(t, 12, r.next.Calls())
	assert.Equal(t, int64(limit.Never), take(r, 15*time.Second, hit(lim, 11))[0].RetryAfter)
	assert.False(t, take(r, 15*time.Second, hit(lim, 0))[0].Allowed)
	assert.Equal(t, 13, r.next.Calls(), "peeks go to the backend")

	assert.True(t, take(r, 60*time.Second, hit(lim, 1))[0].Allowed, "the next window")
}

func TestGuardNeverDeniesTooEarly(t *testing.T) {
	lim, raised := newLimit(t, limit.FixedWindow, 10), newLimit(t, limit.FixedWindow, 20)
	for _, c := range []struct {
		name   string
		before func(r fixture)
	}{
		{"refund", func(r fixture) { take(r, 0, hit(lim, 8), hit(lim, 8), hit(lim, -10)) }},
		{"raised limit", func(r fixture) { take(r, 0, hit(lim, 10), hit(lim, 5)) }},
		{"failed hits", func(r fixture) {
			r.next.SetError(backend.ErrUnavailable)
			take(r, 0, hit(lim, 12))
			r.next.SetError(nil)
		}},
		{"another window of the same key", func(r fixture) { take(r, 0, hit(newLimit(t, limit.FirstHitWindow, 10), 12)) }},
		{"another limit of the same key", func(r fixture) { take(r, 0, hit(newLimit(t, limit.SlidingLog, 10), 12)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newFixture(1)
			c.before(r)
			assert.True(t, take(r, 0, hit(raised, 1))[0].Allowed)
		})
	}
}

func TestDegradedDecisionsAreNotCounted(t *testing.T) {
	next := backendtest.Func(func(_ context.Context, _ time.Time, _ []backend.Hit, results []backend.Result) {
		for i := range results {
			results[i] = backend.Result{Source: backend.SourceFallback}
		}
	})
	l := guard.New(guard.Options{Next: next, Counters: local.New(local.Options{}), Ratio: 1})
	for range 50 {
		assert.True(t, take(l, 0, hit(newLimit(t, limit.FixedWindow, 10), 1))[0].Degraded())
	}
}

func TestOtherHitsOfACallAreDecided(t *testing.T) {
	r, hot, cold := newFixture(1), newLimit(t, limit.FixedWindow, 3), newLimit(t, limit.FixedWindow, 100)
	take(r, 0, hit(hot, 4))
	other := backend.Hit{Key: []byte("other"), Limit: cold, N: 1}
	got := take(r, 0, other, hit(hot, 1), other)
	assert.Equal(t, []bool{true, false, true}, []bool{got[0].Allowed, got[1].Allowed, got[2].Allowed})
	assert.Equal(t, int64(98), got[2].Remaining)
}

func TestRandomHitsAreDecidedAsWithoutGuard(t *testing.T) {
	for _, a := range limit.Algorithms() {
		for _, chargeDenied := range []bool{true, false} {
			t.Run(fmt.Sprint(a, chargeDenied), func(t *testing.T) {
				for seed := range uint64(50) {
					random := rand.New(rand.NewPCG(seed, 1))
					s := limit.Spec{Algorithm: a, Requests: 1 + random.Uint32N(20), Unit: limit.Minute, ChargeDenied: chargeDenied}
					if a.UsesBurst() {
						s.Burst = 1 + random.Uint32N(30)
					}
					lim, guarded, plain := backendtest.NewLimit(t, s), newFixture(1), newFixture(1e10)
					at := time.Duration(0)
					for range 300 {
						at += time.Duration(random.Int64N(int64(4 * time.Second)))
						if random.IntN(20) == 0 {
							at += time.Minute
						}
						n := 1 + random.Int64N(4)
						got, want := take(guarded, at, hit(lim, n))[0], take(plain, at, hit(lim, n))[0]
						require.Equal(t, want.Allowed, got.Allowed, "%v, %d hits at %v, seed %d", lim, n, at, seed)
					}
				}
			})
		}
	}
}

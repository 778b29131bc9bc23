package fallback

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/limit"
)

func TestWorkingPrimaryAnswersAsALimiter(t *testing.T) {
	t.Parallel()
	backendtest.RunWrapper(t, func(t *testing.T) backend.Limiter { return newFixture(t, nil) })
}

func TestSecondaryAnswersAsALimiter(t *testing.T) {
	t.Parallel()
	backendtest.RunWrapper(t, func(t *testing.T) backend.Limiter {
		l := newFixture(t, func(o *Options) { o.Ratio = 1 })
		l.primary.SetError(errDown)
		return withoutSource{l}
	})
}

// withoutSource is a Limiter that clears the fields that only the fallback sets, because the suite does not expect them.
type withoutSource struct{ next backend.Limiter }

func (l withoutSource) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	l.next.Take(ctx, now, hits, results)
	for i := range results {
		results[i] = backend.Result{Result: results[i].Result, Err: results[i].Err}
	}
}

func TestSecondaryDecidesTheFirstFailedHit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time stands still, so the breaker stays closed
		l := newFixture(t, nil)
		lim := newLimit(t, 100, limit.Day)
		l.primary.SetError(errDown)
		for n := range 51 {
			got := l.take("k", lim, 1)
			require.NoError(t, got.Err)
			assert.True(t, got.IsDegraded())
			assert.Equal(t, n < 50, got.Allowed, "hit %d", n+1)
		}
		l.primary.SetError(nil)
		got := l.take("k", lim, 1)
		assert.False(t, got.IsDegraded())
		assert.Equal(t, int64(99), got.Remaining)
	})
}

func TestModeAndRatioDetermineTheAdmittedHits(t *testing.T) {
	for _, c := range []struct {
		name         string
		ratio        float64
		mode         limit.FailureMode
		change       func(*limit.Spec)
		admittedHits int64 // the admitted hits of 200, with a limit of 100
	}{
		{name: "ratio 0.5", ratio: 0.5, admittedHits: 50},
		{name: "ratio of the service", ratio: 0.2, admittedHits: 20},
		{name: "ratio of the limit", ratio: 0.2, change: func(s *limit.Spec) { s.FallbackRatio = 0.7 }, admittedHits: 70},
		{name: "ratio 1", ratio: 1, admittedHits: 100},
		{name: "ratio without an exact float64", ratio: 0.29, admittedHits: 29},
		{name: "a share is at least 1", ratio: 0.001, admittedHits: 1},
		{name: "limit of 0", ratio: 0.5, change: func(s *limit.Spec) { s.Requests = 0 }, admittedHits: 0},
		{name: "share of a burst", ratio: 0.5, change: func(s *limit.Spec) { s.Algorithm, s.Burst = limit.TokenBucket, 30 }, admittedHits: 15},
		{name: "service allows", ratio: 0.5, mode: limit.FailAllow, admittedHits: 200},
		{name: "service denies", ratio: 0.5, mode: limit.FailDeny, admittedHits: 0},
		{name: "limit allows", ratio: 0.5, mode: limit.FailDeny, change: func(s *limit.Spec) { s.OnBackendFailure = limit.FailAllow }, admittedHits: 200},
		{name: "limit denies", ratio: 0.5, mode: limit.FailAllow, change: func(s *limit.Spec) { s.OnBackendFailure = limit.FailDeny }, admittedHits: 0},
		{name: "limit counts locally", ratio: 0.5, mode: limit.FailAllow, change: func(s *limit.Spec) { s.OnBackendFailure = limit.FailLocal }, admittedHits: 50},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newFixture(t, func(o *Options) { o.Ratio, o.Mode = c.ratio, c.mode })
			l.primary.SetError(errDown)
			spec := limit.Spec{Requests: 100, Unit: limit.Year}
			if c.change != nil {
				c.change(&spec)
			}
			lim, admittedHits := backendtest.NewLimit(t, spec), int64(0)
			for range 200 {
				got := l.take("k", lim, 1)
				require.NoError(t, got.Err)
				require.True(t, got.IsDegraded())
				if got.Allowed {
					admittedHits++
				} else {
					assert.Positive(t, lim.DurationUntilReset(got.Result))
				}
			}
			assert.Equal(t, c.admittedHits, admittedHits)
		})
	}
}

func TestRefundIsAllowedInEveryMode(t *testing.T) {
	for _, mode := range []limit.FailureMode{limit.FailLocal, limit.FailAllow, limit.FailDeny} {
		l := newFixture(t, func(o *Options) { o.Mode = mode })
		l.primary.SetError(errDown)
		assert.True(t, l.take("k", newLimit(t, 5, limit.Day), -1).Allowed, mode)
	}
}

func TestPeekIsDeniedInModeDeny(t *testing.T) {
	l := newFixture(t, func(o *Options) { o.Mode = limit.FailDeny })
	l.primary.SetError(errDown)
	peek := l.take("k", newLimit(t, 5, limit.Day), 0)
	assert.False(t, peek.Allowed)
	assert.Positive(t, peek.RetryAfter)
}

func TestSecondaryCountsInItsOwnNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		lim := newLimit(t, 100, limit.Day)
		takeOne(l.secondary, "k", lim, 30) // for example a limit of scope instance
		l.primary.SetError(errDown)
		assert.Equal(t, int64(49), l.take("k", lim, 1).Remaining)
		assert.Equal(t, int64(30), spentHits(l.secondary, "k", lim))
		assert.Equal(t, int64(1), spentHits(l.secondary, Namespace+"k", lim))
	})
}

func TestPermanentErrorsPassThrough(t *testing.T) {
	l := newFixture(t, nil)
	permanentError := errors.New("broken")
	l.primary.SetError(permanentError)
	for range 10 {
		require.ErrorIs(t, l.take("k", newLimit(t, 5, limit.Day), 1).Err, permanentError)
	}
	assert.Zero(t, l.unclosedBreakers.Load())
	assert.Zero(t, l.hitsServed.Load())
}

func TestCancellationDoesNotOpenBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		lim := newLimit(t, 5, limit.Day)
		l.primary.Delay(time.Hour) // the error then wraps ErrUnavailable and the error of the context
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			results := make([]backend.Result, 1)
			l.Take(ctx, time.Now(), []backend.Hit{{Key: []byte("k"), Limit: lim, N: 1}}, results)
			cancel()
			require.ErrorIs(t, results[0].Err, context.DeadlineExceeded)
			require.False(t, results[0].IsDegraded())
		}
		assert.Zero(t, l.unclosedBreakers.Load())
		assert.Zero(t, spentHits(l.secondary, Namespace+"k", lim))
	})
}

func TestPartialFailureFallsBackPerHit(t *testing.T) {
	for _, c := range []struct {
		name   string
		isOpen bool
	}{{"breaker closed", false}, {"breaker open", true}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newFixture(t, func(o *Options) {
					useTwoShards(o)
					o.Probe = func(context.Context, int) error { return errDown }
				})
				lim, denyLimit, allowLimit := newLimit(t, 10, limit.Year), newLimit(t, 10, limit.Year), newLimit(t, 10, limit.Year)
				denyLimit.OnBackendFailure, allowLimit.OnBackendFailure = limit.FailDeny, limit.FailAllow
				l.primary.FailHits(failKeysWithB)
				if c.isOpen {
					for range minFailures + 1 {
						l.take("b", lim, 0)
						time.Sleep(minFailingTime)
					}
				}
				require.Equal(t, c.isOpen, l.isDown())
				hits := []backend.Hit{
					{Key: []byte("b1"), Limit: lim, N: 4},
					{Key: []byte("a1"), Limit: lim, N: 4},
					{Key: []byte("b2"), Limit: denyLimit, N: 1},
					{Key: []byte("a2"), Limit: denyLimit, N: 1},
					{Key: []byte("b3"), Limit: allowLimit, N: 100},
					{Key: []byte("b1"), Limit: lim, N: 1},
				}
				results := make([]backend.Result, len(hits))
				l.Take(t.Context(), time.Now(), hits, results)
				for i, want := range []struct {
					degraded, allowed bool
					remaining         int64
				}{{true, true, 1}, {false, true, 6}, {true, false, 0}, {false, true, 9}, {true, true, 10}, {true, true, 0}} {
					require.NoError(t, results[i].Err)
					assert.Equal(t, want.degraded, results[i].IsDegraded(), "degraded %d", i)
					assert.Equal(t, want.allowed, results[i].Allowed, "allowed %d", i)
					assert.Equal(t, want.remaining, results[i].Remaining, "remaining %d", i)
				}
				assert.Equal(t, "b1", string(hits[0].Key), "Take leaves the caller's hits unchanged")
				assert.Same(t, lim, hits[0].Limit)
				callsBefore := l.primary.Calls()
				l.take("b1", lim, 1)
				assert.Equal(t, !c.isOpen, l.primary.Calls() > callsBefore, "primary was called")
			})
		})
	}
}

func TestChangedLimitKeepsTheCountOfTheSecondary(t *testing.T) {
	l := newFixture(t, nil)
	l.primary.SetError(errDown)
	require.True(t, l.take("k", newLimit(t, 100, limit.Year), 50).Allowed)
	raisedLimit := newLimit(t, 120, limit.Year)
	assert.True(t, l.take("k", raisedLimit, 10).Allowed)
	assert.False(t, l.take("k", raisedLimit, 1).Allowed)
}

func TestShareIsGrantedOnceIfThePrimaryFailsRepeatedly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		lim := newLimit(t, 10_000, limit.Year)
		var callers sync.WaitGroup
		stop := make(chan struct{})
		allowedHits := make([]int64, 8)
		for i := range allowedHits {
			callers.Go(func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(time.Millisecond): // all callers at once
					}
					got := l.take("k", lim, 1)
					if !assert.NoError(t, got.Err) {
						return
					}
					if got.Allowed {
						allowedHits[i]++
					}
				}
			})
		}
		for range 30 {
			l.primary.SetError(errDown)
			time.Sleep(rand.N(time.Second))
			l.primary.SetError(nil)
			time.Sleep(rand.N(time.Second))
		}
		close(stop)
		callers.Wait()
		l.heal()
		total := int64(0)
		for _, n := range allowedHits {
			total += n
		}
		assert.LessOrEqual(t, total, int64(15_000), "the limit, and the share of the secondary once")
		assert.LessOrEqual(t, spentHits(l.primaryCounters, "k", lim), total, "no hit is charged twice")
		assert.False(t, l.take("k", lim, 10_000).Allowed, "the limit was reached")
	})
}

func TestCloseEndsProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		lim := newLimit(t, 100, limit.Day)
		l.openBreakers(lim, "k")
		require.True(t, l.isDown())
		l.Close()
		calls := l.primary.Calls()
		time.Sleep(time.Minute)
		assert.Equal(t, calls, l.primary.Calls())
		assert.True(t, l.take("k", lim, 1).Allowed, "a closed Limiter still decides")
		l.Close()

		closedFixture := newFixture(t, nil)
		closedFixture.Close()
		closedFixture.openBreakers(lim, "k")
		assert.NoError(t, closedFixture.take("k", lim, 1).Err)
		assert.Empty(t, closedFixture.stateChanges())
	})
}

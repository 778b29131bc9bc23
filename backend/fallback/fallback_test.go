package fallback

import (
	"context"
	"errors"
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

func TestIsALimiterWhileThePrimaryWorks(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) backend.Limiter { return newRig(t, nil) })
}

func TestIsALimiterWhileThePrimaryIsAway(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) backend.Limiter {
		r := newRig(t, func(o *Options) { o.Ratio = 1 })
		r.primary.Fail(errDown)
		return notDegraded{r}
	})
}

// notDegraded hides that a stand-in answered, of which the suite doesn't know.
type notDegraded struct{ next backend.Limiter }

func (n notDegraded) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	n.next.Take(ctx, now, hits, results)
	for i := range results {
		results[i].Source = backend.SourceBackend
	}
}

func TestTheFirstFailureIsAnsweredBySecondaryAtHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // where no time passes, so that the part doesn't open
		r := newRig(t, nil)
		lim := per(t, 100, limit.Day)
		r.primary.Fail(errDown)
		for n := range 51 {
			got := r.take("k", lim, 1)
			require.NoError(t, got.Err)
			assert.True(t, got.Degraded())
			assert.Equal(t, n < 50, got.Allowed, "hit %d", n+1)
		}
		r.primary.Fail(nil)
		got := r.take("k", lim, 1)
		assert.False(t, got.Degraded())
		assert.Equal(t, int64(99), got.Remaining)
	})
}

func TestWhatTheSecondaryGrants(t *testing.T) {
	spec := func(f func(*limit.Spec)) func(*limit.Spec) { return f }
	for _, c := range []struct {
		name    string
		ratio   float64
		mode    limit.FailureMode
		set     func(*limit.Spec)
		granted int64
	}{
		{name: "half by default", granted: 50},
		{name: "the service's ratio", ratio: 0.2, granted: 20},
		{name: "the limit's ratio", ratio: 0.2, set: spec(func(s *limit.Spec) { s.FallbackRatio = 0.7 }), granted: 70},
		{name: "all", ratio: 1, granted: 100},
		{name: "a ratio that has no exact double", ratio: 0.29, granted: 29},
		{name: "at least 1", ratio: 0.001, granted: 1},
		{name: "nothing of nothing", set: spec(func(s *limit.Spec) { s.Requests = 0 }), granted: 0},
		{name: "a share of the burst", set: spec(func(s *limit.Spec) { s.Algorithm, s.Burst = limit.TokenBucket, 30 }), granted: 15},
		{name: "all where the service allows", mode: limit.FailAllow, granted: 200},
		{name: "none where the service denies", mode: limit.FailDeny, granted: 0},
		{name: "all where the limit allows", mode: limit.FailDeny, set: spec(func(s *limit.Spec) { s.OnBackendFailure = limit.FailAllow }), granted: 200},
		{name: "none where the limit denies", mode: limit.FailAllow, set: spec(func(s *limit.Spec) { s.OnBackendFailure = limit.FailDeny }), granted: 0},
		{name: "a share where the limit counts", mode: limit.FailAllow, set: spec(func(s *limit.Spec) { s.OnBackendFailure = limit.FailLocal }), granted: 50},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, func(o *Options) { o.Ratio, o.Mode = c.ratio, c.mode })
			r.primary.Fail(errDown)
			spec := limit.Spec{Requests: 100, Unit: limit.Year}
			if c.set != nil {
				c.set(&spec)
			}
			lim, granted := backendtest.NewLimit(t, spec), int64(0)
			for range 200 {
				got := r.take("k", lim, 1)
				require.NoError(t, got.Err)
				require.True(t, got.Degraded())
				if got.Allowed {
					granted++
				} else {
					assert.Positive(t, lim.DurationUntilReset(got.Result))
				}
			}
			assert.Equal(t, c.granted, granted)
		})
	}
}

func TestGivingBackIsAllowedInEveryMode(t *testing.T) {
	for _, mode := range []limit.FailureMode{limit.FailLocal, limit.FailAllow, limit.FailDeny} {
		r := newRig(t, func(o *Options) { o.Mode = mode })
		r.primary.Fail(errDown)
		assert.True(t, r.take("k", per(t, 5, limit.Day), -1).Allowed, mode)
	}
}

func TestCountersOfTheSecondaryAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		lim := per(t, 100, limit.Day)
		takeOf(r.own, "k", lim, 30) // as a limit of scope instance, or none of Redis would
		r.primary.Fail(errDown)
		assert.Equal(t, int64(49), r.take("k", lim, 1).Remaining)
		assert.Equal(t, int64(30), spent(r.own, "k", lim))
		assert.Equal(t, int64(1), spent(r.own, Namespace+"k", lim))
	})
}

func TestErrorsThatNobodyCanMendStay(t *testing.T) {
	r := newRig(t, nil)
	broken := errors.New("broken")
	r.primary.Fail(broken)
	for range 10 {
		require.ErrorIs(t, r.take("k", per(t, 5, limit.Day), 1).Err, broken)
	}
	assert.Zero(t, r.troubled.Load())
}

func TestTheCallersOwnEndIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		lim := per(t, 5, limit.Day)
		r.primary.Delay(time.Hour) // and then its error wraps ErrUnavailable, too
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			results := make([]backend.Result, 1)
			r.Take(ctx, time.Now(), []backend.Hit{{Key: []byte("k"), Limit: lim, N: 1}}, results)
			cancel()
			require.ErrorIs(t, results[0].Err, context.DeadlineExceeded)
			require.False(t, results[0].Degraded())
		}
		assert.Zero(t, r.troubled.Load())
		assert.Zero(t, spent(r.own, Namespace+"k", lim))
	})
}

func TestHitsOfOneCallAreDecidedEachWhereTheyCan(t *testing.T) {
	parted := func(o *Options) {
		o.Parts, o.Part = 2, func(h *backend.Hit) int { return int(h.Key[0] - 'a') }
		o.Probe = func(context.Context, int) error { return errDown }
	}
	for _, c := range []struct {
		name string
		trip bool
	}{{"from the first failure on", false}, {"once the part is open", true}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, parted)
				lim, deny, allow := per(t, 10, limit.Year), per(t, 10, limit.Year), per(t, 10, limit.Year)
				deny.OnBackendFailure, allow.OnBackendFailure = limit.FailDeny, limit.FailAllow
				r.primary.FailHits(func(h backend.Hit) error {
					if h.Key[0] == 'b' {
						return errDown
					}
					return nil
				})
				if c.trip {
					for range enough + 1 {
						r.take("b", lim, 0)
						time.Sleep(r.o.TripAfter)
					}
				}
				require.Equal(t, c.trip, r.Down())
				hits := []backend.Hit{
					{Key: []byte("b1"), Limit: lim, N: 4},
					{Key: []byte("a1"), Limit: lim, N: 4},
					{Key: []byte("b2"), Limit: deny, N: 1},
					{Key: []byte("a2"), Limit: deny, N: 1},
					{Key: []byte("b3"), Limit: allow, N: 100},
					{Key: []byte("b1"), Limit: lim, N: 1},
				}
				results := make([]backend.Result, len(hits))
				r.Take(t.Context(), time.Now(), hits, results)
				for i, want := range []struct {
					degraded, allowed bool
					remaining         int64
				}{{true, true, 1}, {false, true, 6}, {true, false, 0}, {false, true, 9}, {true, true, 10}, {true, true, 0}} {
					require.NoError(t, results[i].Err)
					assert.Equal(t, want.degraded, results[i].Degraded(), "degraded %d", i)
					assert.Equal(t, want.allowed, results[i].Allowed, "allowed %d", i)
					assert.Equal(t, want.remaining, results[i].Remaining, "remaining %d", i)
				}
				assert.Equal(t, "b1", string(hits[0].Key), "the caller's hits stay as they are")
				assert.Same(t, lim, hits[0].Limit)
				before := r.primary.Calls()
				r.take("b1", lim, 1)
				assert.Equal(t, !c.trip, r.primary.Calls() > before, "asked the primary")
			})
		})
	}
}

func TestChangedNumberGrantsNoShareAnew(t *testing.T) {
	r := newRig(t, nil)
	r.primary.Fail(errDown)
	lim := per(t, 100, limit.Year)
	require.True(t, r.take("k", lim, 50).Allowed)
	lim = per(t, 120, limit.Year)
	assert.True(t, r.take("k", lim, 10).Allowed)
	assert.False(t, r.take("k", lim, 1).Allowed)
}

func TestConcurrentCallersWhileItComesAndGoes(t *testing.T) {
	r := newRig(t, func(o *Options) {
		o.TripAfter, o.ProbeEvery, o.ProbeAtMost = time.Millisecond, time.Millisecond, 5*time.Millisecond
	})
	lim := per(t, 1000, limit.Year)
	var running sync.WaitGroup
	stop := make(chan struct{})
	allowed := make([]int64, 8)
	for i := range allowed {
		running.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				got := r.take("k", lim, 1)
				if !assert.NoError(t, got.Err) {
					return
				}
				if got.Allowed {
					allowed[i]++
				}
			}
		})
	}
	for range 30 {
		r.primary.Fail(errDown)
		time.Sleep(5 * time.Millisecond)
		r.primary.Fail(nil)
		time.Sleep(5 * time.Millisecond)
	}
	close(stop)
	running.Wait()
	r.heal()
	all := int64(0)
	for _, n := range allowed {
		all += n
	}
	assert.LessOrEqual(t, all, int64(1500), "the limit, and half of it once, however often it went")
	assert.LessOrEqual(t, spent(r.shared, "k", lim), all, "nothing is charged twice")
}

func TestCloseEndsTheProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		lim := per(t, 100, limit.Day)
		r.trip(lim, "k")
		require.True(t, r.Down())
		r.Close()
		calls := r.primary.Calls()
		time.Sleep(time.Minute)
		assert.Equal(t, calls, r.primary.Calls())
		assert.True(t, r.take("k", lim, 1).Allowed, "it still decides")
		r.Close()

		late := newRig(t, nil)
		late.Close()
		late.trip(lim, "k")
		assert.NoError(t, late.take("k", lim, 1).Err)
		assert.Empty(t, late.told())
	})
}

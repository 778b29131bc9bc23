package backend_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/limit"
)

// newSlowLimiter returns a Limiter that answers as l does, but later. The end of a context does not shorten the delay.
func newSlowLimiter(delay time.Duration, l backend.Limiter) backend.Limiter {
	return backendtest.Func(func(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
		time.Sleep(delay)
		l.Take(ctx, now, hits, results)
	})
}

func TestBoundedAnswersAsItsLimiter(t *testing.T) {
	t.Parallel()
	backendtest.RunWrapper(t, func(*testing.T) backend.Limiter {
		return backend.NewBounded(local.New(local.Options{}), time.Minute, 4)
	})
}

func TestBoundedTakeEndsWithItsBudget(t *testing.T) {
	for name, c := range map[string]struct {
		timeout time.Duration // the timeout of the caller; 0 means none
		want    time.Duration
	}{
		"no deadline":      {0, 50 * time.Millisecond},
		"late deadline":    {time.Second, 50 * time.Millisecond},
		"earlier deadline": {20 * time.Millisecond, 15 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := backend.NewBounded(newSlowLimiter(time.Second, local.New(local.Options{})), 50*time.Millisecond, 1)
				ctx := t.Context()
				if c.timeout > 0 {
					callerCtx, cancel := context.WithTimeout(ctx, c.timeout)
					defer cancel()
					ctx = callerCtx
				}
				start := time.Now()
				results := make([]backend.Result, 1)
				l.Take(ctx, start, []backend.Hit{boundedHit(t, 1)}, results)
				assert.Equal(t, c.want, time.Since(start))
				assert.Equal(t, backend.ReasonLate, backend.ReasonOf(results[0].Err))
				assert.ErrorIs(t, results[0].Err, backend.ErrUnavailable)
				assert.False(t, backend.IsNotSent(results[0].Err))
				l.Close()
			})
		})
	}
}

// boundedHit returns a hit of n on a limit of 5.
func boundedHit(t *testing.T, n int64) backend.Hit {
	return backend.Hit{Key: []byte("k"), Limit: backendtest.NewLimit(t, limit.Spec{Requests: 5, Unit: limit.Hour}), N: n}
}

func TestLateAnswerOfABoundedTakeArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := backend.NewBounded(newSlowLimiter(time.Second, local.New(local.Options{})), 50*time.Millisecond, 1)
		hits, results := []backend.Hit{boundedHit(t, 3), boundedHit(t, 3)}, make([]backend.Result, 2)
		l.Take(t.Context(), time.Now(), hits, results)
		copy(hits[0].Key, "x") // after Take, the caller may change the key
		var answers []backend.Result
		for _, r := range results {
			lateError, ok := errors.AsType[*backend.LateError](r.Err)
			require.True(t, ok)
			lateError.OnArrival(func(r backend.Result) { answers = append(answers, r) })
		}
		l.Close()
		synctest.Wait()
		require.Len(t, answers, 2)
		assert.Equal(t, []bool{true, false}, []bool{answers[0].Allowed, answers[1].Allowed})
		assert.Equal(t, int64(2), answers[0].Remaining)
	})
}

func TestLateAnswerOfADeniedGroupIsDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := backend.NewBounded(newSlowLimiter(time.Second, local.New(local.Options{})), 50*time.Millisecond, 1)
		allowedHit, deniedHit := boundedHit(t, 1), boundedHit(t, 9)
		allowedHit.AllOrNone, deniedHit.AllOrNone, deniedHit.Key = true, true, []byte("other")
		outsideHit, results, answers := boundedHit(t, 1), make([]backend.Result, 3), make([]backend.Result, 3)
		outsideHit.Key = []byte("outside the group")
		l.Take(t.Context(), time.Now(), []backend.Hit{allowedHit, deniedHit, outsideHit}, results)
		for i := range results {
			lateError, _ := errors.AsType[*backend.LateError](results[i].Err)
			lateError.OnArrival(func(r backend.Result) { answers[i] = r })
		}
		l.Close()
		synctest.Wait()
		assert.False(t, answers[0].Allowed, "nothing is charged")
		assert.Equal(t, int64(5), answers[0].Remaining)
		assert.True(t, answers[2].Allowed)
	})
}

func TestBoundedTakeWaitsForOthersWithinItsBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := backend.NewBounded(newSlowLimiter(time.Second, local.New(local.Options{})), 50*time.Millisecond, 1)
		hits, results := []backend.Hit{boundedHit(t, 1)}, make([]backend.Result, 1)
		l.Take(t.Context(), time.Now(), hits, results)
		l.Take(t.Context(), time.Now(), hits, results)
		assert.True(t, backend.IsNotSent(results[0].Err), "the first Take still runs")
		time.Sleep(time.Second)
		l.Take(t.Context(), time.Now(), hits, results)
		assert.False(t, backend.IsNotSent(results[0].Err))
		l.Close()
	})
}

func TestCancelledBoundedTakeReturnsTheCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := backend.NewBounded(newSlowLimiter(time.Second, local.New(local.Options{})), 50*time.Millisecond, 1)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		start, results := time.Now(), make([]backend.Result, 1)
		l.Take(ctx, start, []backend.Hit{boundedHit(t, 1)}, results)
		assert.Equal(t, 10*time.Millisecond, time.Since(start))
		assert.ErrorIs(t, results[0].Err, context.Canceled)
		assert.NotErrorIs(t, results[0].Err, backend.ErrUnavailable, "the caller is the cause")
		l.Close()
	})
}

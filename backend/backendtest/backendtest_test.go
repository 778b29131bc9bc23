package backendtest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/limit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newSimpleLimiter returns a Limiter that is short enough to be obviously right.
func newSimpleLimiter() backend.Limiter {
	var mu sync.Mutex
	states := map[string]*limit.State{}
	return backendtest.Func(func(_ context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
		mu.Lock()
		defer mu.Unlock()
		for i, h := range hits {
			name := h.Limit.Tag() + "/" + string(h.Key)
			if states[name] == nil {
				states[name] = new(limit.State)
			}
			results[i] = backend.Result{Result: h.Limit.TakeHold(states[name], now.UnixMicro(), h.N, h.HoldID)}
		}
	})
}

func TestSimpleLimiterPassesTheSuite(t *testing.T) {
	backendtest.Run(t, func(*testing.T) backend.Limiter { return newSimpleLimiter() })
}

func TestFlakyWithoutFailuresPassesTheSuite(t *testing.T) {
	backendtest.Run(t, func(*testing.T) backend.Limiter {
		f := backendtest.NewFlaky(newSimpleLimiter())
		f.FailHits(func(backend.Hit) error { return nil })
		return f
	})
}

var errDown = fmt.Errorf("%w: down", backend.ErrUnavailable)

func take(ctx context.Context, l backend.Limiter, hits ...backend.Hit) []backend.Result {
	results := make([]backend.Result, len(hits))
	l.Take(ctx, backendtest.Start(), hits, results)
	return results
}

func hit(t *testing.T) backend.Hit {
	l := backendtest.NewLimit(t, limit.Spec{Requests: 5, Unit: limit.Hour})
	return backend.Hit{Key: backendtest.Key(), Limit: l, N: 1}
}

func TestFlakyFailsUntilItsErrorIsCleared(t *testing.T) {
	f, h := backendtest.NewFlaky(newSimpleLimiter()), hit(t)
	f.SetError(errDown)
	assert.ErrorIs(t, take(t.Context(), f, h)[0].Err, backend.ErrUnavailable)
	f.SetError(nil)
	r := take(t.Context(), f, h)[0]
	assert.NoError(t, r.Err)
	assert.Equal(t, int64(4), r.Remaining, "the failed Take has charged nothing")
	assert.Equal(t, 2, f.Calls())
}

func TestFlakyFailsSomeHitsOnly(t *testing.T) {
	f, a, b := backendtest.NewFlaky(newSimpleLimiter()), hit(t), hit(t)
	f.FailHits(func(h backend.Hit) error {
		if string(h.Key) == string(a.Key) {
			return errDown
		}
		return nil
	})
	r := take(t.Context(), f, a, b, a, b)
	assert.Equal(t, errDown, r[0].Err)
	assert.Equal(t, int64(4), r[1].Remaining)
	assert.Equal(t, errDown, r[2].Err)
	assert.Equal(t, int64(3), r[3].Remaining)
}

func TestFlakyDelaysItsAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := backendtest.NewFlaky(newSimpleLimiter()), hit(t)
		f.Delay(time.Second)
		start := time.Now()
		assert.NoError(t, take(t.Context(), f, h)[0].Err)
		assert.Equal(t, time.Second, time.Since(start))

		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		start = time.Now()
		err := take(ctx, f, h)[0].Err
		assert.Equal(t, 30*time.Millisecond, time.Since(start))
		assert.ErrorIs(t, err, backend.ErrUnavailable)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestFlakyIsSafeForConcurrentUse(t *testing.T) {
	f, h := backendtest.NewFlaky(newSimpleLimiter()), hit(t)
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			for range 50 {
				f.SetError(errors.New("once"))
				take(t.Context(), f, h)
				f.Delay(time.Duration(i))
				f.SetError(nil)
			}
		})
	}
	callers.Wait()
	assert.Equal(t, 400, f.Calls())
}

package backend_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/limit"
)

// newScopes returns Scopes with local counters of scope instance.
func newScopes(global backend.Limiter) backend.Scopes {
	return backend.Scopes{Shared: backend.Counters{Limiter: global}, Instance: backend.Counters{Limiter: local.New(local.Options{})}}
}

func TestScopesAnswerAsALimiter(t *testing.T) {
	t.Parallel()
	backendtest.RunWrapper(t, func(*testing.T) backend.Limiter {
		return newScopes(local.New(local.Options{}))
	})
}

func TestHitsGoToTheLimiterOfTheirScope(t *testing.T) {
	newLimit := func(s limit.Scope) *limit.Limit {
		l, err := limit.New(limit.Spec{Requests: 10, Unit: limit.Hour, Scope: s})
		require.NoError(t, err)
		return l
	}
	globalLimit, instanceLimit := newLimit(limit.Region), newLimit(limit.Instance)
	errDown := errors.New("down")
	l := newScopes(
		backendtest.Func(func(_ context.Context, _ time.Time, hits []backend.Hit, results []backend.Result) {
			for i := range hits {
				assert.Equal(t, limit.Region, hits[i].Limit.Scope)
				results[i] = backend.Result{Err: errDown}
			}
		}),
	)
	for name, limits := range map[string][]*limit.Limit{
		"scope global only":   {globalLimit, globalLimit},
		"scope instance only": {instanceLimit, instanceLimit},
		"both scopes":         {globalLimit, instanceLimit, instanceLimit, globalLimit},
	} {
		t.Run(name, func(t *testing.T) {
			hits, results := make([]backend.Hit, len(limits)), make([]backend.Result, len(limits))
			for i, lim := range limits {
				hits[i] = backend.Hit{Key: []byte(t.Name()), Limit: lim, N: 1}
			}
			l.Take(t.Context(), time.Now(), hits, results)
			remaining := int64(10)
			for i, lim := range limits {
				if lim == globalLimit {
					assert.ErrorIs(t, results[i].Err, errDown, "an error of scope global concerns only its own hits")
					continue
				}
				remaining--
				assert.NoError(t, results[i].Err)
				assert.Equal(t, remaining, results[i].Remaining)
			}
		})
	}
}

func TestGroupOverBothScopesIsChargedCompletelyOrNotAtAll(t *testing.T) {
	newLimit := func(requests uint32, s limit.Scope) *limit.Limit {
		l, err := limit.New(limit.Spec{Requests: requests, Unit: limit.Hour, Scope: s, ChargeDenied: true})
		require.NoError(t, err)
		return l
	}
	for name, c := range map[string]struct {
		globalMax, instanceMax uint32
		want                   [3]int64 // the spent hits of scope global, of scope instance, and outside the group, after 2 hits each
	}{
		"both admit":            {5, 5, [3]int64{2, 2, 2}},
		"scope instance denies": {5, 1, [3]int64{0, 0, 2}},
		"scope global denies":   {1, 5, [3]int64{0, 0, 2}},
		"both deny":             {1, 1, [3]int64{0, 0, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			globalLimit, instanceLimit := newLimit(c.globalMax, limit.Region), newLimit(c.instanceMax, limit.Instance)
			l := newScopes(local.New(local.Options{}))
			take := func(n int64) []backend.Result {
				results := make([]backend.Result, 3)
				l.Take(t.Context(), time.Now(), []backend.Hit{
					{Key: []byte("a"), Limit: globalLimit, N: n, AllOrNone: true},
					{Key: []byte("a"), Limit: instanceLimit, N: n, AllOrNone: true},
					{Key: []byte("outside the group"), Limit: instanceLimit, N: n},
				}, results)
				return results
			}
			got := take(2)
			assert.Equal(t, []bool{c.globalMax >= 2, c.instanceMax >= 2}, []bool{got[0].Allowed, got[1].Allowed})
			peeks := take(0)
			assert.Equal(t, c.want, [3]int64{globalLimit.Spent(peeks[0].Result), instanceLimit.Spent(peeks[1].Result), instanceLimit.Spent(peeks[2].Result)})
		})
	}
}

// forgetter is a Layer that records the calls of Forget.
type forgetter struct {
	backend.Counters
	forgottenHits []*backend.Hit
}

func (f *forgetter) Forget(h *backend.Hit) { f.forgottenHits = append(f.forgottenHits, h) }

func TestPeekAndForgetGoToTheLayerOfTheScope(t *testing.T) {
	newLimit := func(requests uint32, s limit.Scope) *limit.Limit {
		l, err := limit.New(limit.Spec{Requests: requests, Unit: limit.Hour, Scope: s})
		require.NoError(t, err)
		return l
	}
	global := &forgetter{Counters: backend.Counters{Limiter: local.New(local.Options{})}}
	instance := &forgetter{Counters: backend.Counters{Limiter: local.New(local.Options{})}}
	l := backend.Scopes{Shared: global, Instance: instance}
	hits := []backend.Hit{
		{Key: []byte("a"), Limit: newLimit(10, limit.Region), N: 1},
		{Key: []byte("a"), Limit: newLimit(20, limit.Instance), N: 2},
		{Key: []byte("b"), Limit: newLimit(30, limit.Region), N: 3},
	}
	l.Take(t.Context(), time.Now(), hits, make([]backend.Result, len(hits)))
	for range 2 { // the second Peek shows that the first Peek charged nothing
		peeks := make([]backend.Peek, len(hits))
		l.Peek(t.Context(), time.Now(), hits, peeks)
		assert.Equal(t, []int64{9, 18, 27}, []int64{peeks[0].Remaining, peeks[1].Remaining, peeks[2].Remaining})
	}
	l.Forget(&hits[1])
	l.Forget(&hits[2])
	l.Forget(nil)
	assert.Equal(t, []*backend.Hit{&hits[2], nil}, global.forgottenHits)
	assert.Equal(t, []*backend.Hit{&hits[1], nil}, instance.forgottenHits)
}

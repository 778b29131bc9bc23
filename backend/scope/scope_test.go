package scope_test

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
	"github.com/seed-81f232ab/rls/backend/scope"
	"github.com/seed-81f232ab/rls/limit"
)

func TestScopesAnswerAsALimiter(t *testing.T) {
	t.Parallel()
	backendtest.RunWrapper(t, func(*testing.T) backend.Limiter {
		return scope.New(local.New(local.Options{}), local.New(local.Options{}))
	})
}

func TestHitsGoToTheLimiterOfTheirScope(t *testing.T) {
	newLimit := func(s limit.Scope) *limit.Limit {
		l, err := limit.New(limit.Spec{Requests: 10, Unit: limit.Hour, Scope: s})
		require.NoError(t, err)
		return l
	}
	global, instance := newLimit(limit.Global), newLimit(limit.Instance)
	errDown := errors.New("down")
	l := scope.New(
		backendtest.Func(func(_ context.Context, _ time.Time, hits []backend.Hit, results []backend.Result) {
			for i := range hits {
				assert.Equal(t, limit.Global, hits[i].Limit.Scope)
				results[i] = backend.Result{Err: errDown}
			}
		}),
		local.New(local.Options{}),
	)
	for name, limits := range map[string][]*limit.Limit{
		"global only":   {global, global},
		"instance only": {instance, instance},
		"mixed":         {global, instance, instance, global},
	} {
		t.Run(name, func(t *testing.T) {
			hits, results := make([]backend.Hit, len(limits)), make([]backend.Result, len(limits))
			for i, lim := range limits {
				hits[i] = backend.Hit{Key: []byte(t.Name()), Limit: lim, N: 1}
			}
			l.Take(t.Context(), time.Now(), hits, results)
			remaining := int64(10)
			for i, lim := range limits {
				if lim == global {
					assert.ErrorIs(t, results[i].Err, errDown, "does not affect the other scope")
					continue
				}
				remaining--
				assert.NoError(t, results[i].Err)
				assert.Equal(t, remaining, results[i].Remaining)
			}
		})
	}
}

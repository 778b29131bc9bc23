package backend_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/limit"
)

func TestOnlyHitsThatChargeAreInAGroup(t *testing.T) {
	deniedResult := &backend.Result{}
	for n, want := range map[int64]bool{1: true, math.MaxInt64: true, 0: false, -1: false, math.MinInt64: false} {
		h := &backend.Hit{N: n, AllOrNone: true}
		assert.Equal(t, want, h.IsInGroup(), n)
		assert.Equal(t, want, h.DeniesGroup(deniedResult), n)
		h.Shadow = true
		assert.Equal(t, want, h.IsInGroup(), n)
		assert.False(t, h.DeniesGroup(deniedResult), n)
		assert.False(t, (&backend.Hit{N: n}).IsInGroup(), n)
	}
}

var furtherSource = backend.NewSource("further")

func TestOnlySourcesWithCountersAreBackends(t *testing.T) {
	assert.Equal(t, "further", furtherSource.String())
	backends := map[backend.Source]bool{backend.SourceLocal: true, backend.SourceRedis: true, furtherSource: true}
	for _, s := range backend.Sources() {
		assert.Equal(t, backends[s], s.IsBackend(), s)
		assert.Equal(t, s == backend.SourceFallback, backend.Result{Source: s}.IsDegraded(), s)
	}
}

func TestSingleHitIsNoGroup(t *testing.T) {
	groupHit, singleHit := backend.Hit{N: 1, AllOrNone: true}, backend.Hit{N: 1}
	assert.False(t, backend.HasGroup([]backend.Hit{groupHit}))
	assert.True(t, backend.HasGroup([]backend.Hit{singleHit, groupHit}))
	assert.False(t, backend.HasGroup([]backend.Hit{singleHit, singleHit}))
}

func TestHitsOfADeniedGroupAreOnlyPeeked(t *testing.T) {
	lim := backendtest.NewLimit(t, limit.Spec{Requests: 10, Unit: limit.Minute})
	groupHit, singleHit := backend.Hit{Limit: lim, N: 3, AllOrNone: true}, backend.Hit{Limit: lim, N: 3}
	var sentHits []int64
	nextLimiter := backendtest.Func(func(_ context.Context, _ time.Time, hits []backend.Hit, results []backend.Result) {
		for i, h := range hits {
			sentHits = append(sentHits, h.N)
			results[i] = backend.Result{Result: limit.Result{Allowed: true, Remaining: 2, ResetAfter: 9}}
		}
		results[len(hits)-1].Err = backend.ErrUnavailable
	})
	results := make([]backend.Result, 4)
	hits := []backend.Hit{groupHit, groupHit, singleHit, groupHit}
	backend.TakeDeniedGroup(t.Context(), time.Now(), nextLimiter, hits, results, func(i int) bool { return i > 0 })
	assert.Equal(t, []int64{0, 3, 0}, sentHits)
	assert.Equal(t, backend.Result{}, results[0], "the first hit is not included")
	assert.Equal(t, limit.Result{Remaining: 2, ResetAfter: 9, RetryAfter: 9}, results[1].Result, "3 hits don't pass")
	assert.Equal(t, limit.Result{Allowed: true, Remaining: 2, ResetAfter: 9}, results[2].Result, "the single hit is charged")
	assert.ErrorIs(t, results[3].Err, backend.ErrUnavailable)
}

func TestLateAnswerArrivesOnce(t *testing.T) {
	answer := backend.Result{Result: limit.Result{Allowed: true, Remaining: 3}}
	noAnswer := &backend.Error{Reason: backend.ReasonLate}
	for name, isEarly := range map[string]bool{"the answer arrives before somebody waits": true, "the answer arrives while somebody waits": false} {
		t.Run(name, func(t *testing.T) {
			lateError := backend.NewLateError(noAnswer)
			var got []backend.Result
			if isEarly {
				lateError.Arrive(answer)
			}
			lateError.OnArrival(func(r backend.Result) { got = append(got, r) })
			if !isEarly {
				assert.Empty(t, got)
				lateError.Arrive(answer)
			}
			assert.Equal(t, []backend.Result{answer}, got)
			assert.ErrorIs(t, lateError, noAnswer)
		})
	}
}

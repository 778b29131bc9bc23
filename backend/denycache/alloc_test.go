//go:build !race

// The race detector empties pools at random, so allocations are counted without it.

package denycache

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

func TestRememberedDenialAllocatesNothing(t *testing.T) {
	l := New(backend.Counters{Limiter: newCountingLimiter()}, Options{})
	lim := newLimit(t, limit.Spec{Requests: 1})
	take(l, 0, hit("a", lim, 1))
	take(l, 0, hit("a", lim, 1))
	hits, results := []backend.Hit{hit("a", lim, 1)}, make([]backend.Result, 1)
	assert.Zero(t, testing.AllocsPerRun(1000, func() { l.Take(context.Background(), start, hits, results) }))
}

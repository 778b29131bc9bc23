//go:build !race

// The race detector empties pools at random, so allocations are counted without it.

package fallback

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

func TestTakeAllocatesNothingWithClosedOrOpenBreaker(t *testing.T) {
	l := newFixture(t, func(o *Options) {
		o.Probe = func(ctx context.Context, _ int) error { // the only probe, because probes allocate
			<-ctx.Done()
			return ctx.Err()
		}
	})
	l.options.Primary = l.primaryCounters
	var hits []backend.Hit
	for i := range 3 {
		hits = append(hits, backend.Hit{Key: fmt.Append(nil, "k", i), Limit: newLimit(t, 1_000_000, limit.Year), N: 1})
	}
	results := make([]backend.Result, len(hits))
	allocs := func() float64 {
		return testing.AllocsPerRun(100, func() { l.Take(context.Background(), time.Now(), hits, results) })
	}
	assert.Zero(t, allocs(), "the breaker is closed")
	l.options.Primary = l.primary
	l.openBreakers(hits[0].Limit, "k0")
	time.Sleep(2 * firstProbePause)
	assert.Zero(t, allocs(), "the breaker is open")
}

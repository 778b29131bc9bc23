//go:build !race

// The race detector empties pools at random, so allocations are counted without it.

package lease

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
)

func TestHitWithPermitsNeedsNoAllocs(t *testing.T) {
	lim := perHour(t)
	counters, r := startWithPermits(t, lim)
	hits, results := []backend.Hit{{Key: []byte("k"), Limit: lim, N: 1}}, make([]backend.Result, 1)
	assert.Zero(t, testing.AllocsPerRun(10, func() { r.Take(context.Background(), counters.now, hits, results) }))
}

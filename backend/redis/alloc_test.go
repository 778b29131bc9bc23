//go:build !race

// The race detector makes pools drop objects, so this test counts allocations without it.

package redis_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/limit"
)

func TestAllocationsDoNotGrowWithHits(t *testing.T) {
	db := redistest.Open(t)
	l := open(t, redis.Options{Main: redis.Server{URL: db.Addr}, KeyPrefix: db.Prefix, Timeout: testTimeout})
	lim := newLimit(t, limit.Spec{Requests: 1_000_000, Unit: limit.Day})
	allocs := func(n int) float64 {
		hits, results := make([]backend.Hit, n), make([]backend.Result, n)
		for i := range hits {
			hits[i] = hit(fmt.Sprint("key", i), lim, 1)
		}
		return testing.AllocsPerRun(200, func() { l.Take(context.Background(), start, hits, results) })
	}
	assert.LessOrEqual(t, allocs(64), allocs(1)+2)
}

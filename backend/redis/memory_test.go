package redis_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/limit"
)

// BenchmarkMemory reports the memory of a counter in Redis as b-per-key. MEMORY USAGE leaves
// out the memory of the expiry.
func BenchmarkMemory(b *testing.B) {
	for _, a := range limit.Algorithms() {
		for _, hits := range []int{1, 10, 100, 1000, 10_000} {
			if a != limit.SlidingLog && hits > 1 {
				continue
			}
			b.Run(fmt.Sprintf("%s/hits=%d", a, hits), func(b *testing.B) {
				db := redistest.Open(b)
				client := db.Client(b)
				l := open(b, redis.Options{Main: redis.Server{URL: db.Addr}, KeyPrefix: db.Prefix, Timeout: testTimeout})
				lim := newLimit(b, limit.Spec{Algorithm: a, Requests: 1_000_000, Unit: limit.Day})
				key := fmt.Sprintf("shop|ip=192.0.2.1|%06d", hits)
				for b.Loop() {
					for range hits {
						require.NoError(b, take(l, hit(key, lim, 1))[0].Err)
					}
				}
				name := db.Keys(b)[0]
				b.ReportMetric(float64(client.MemoryUsage(b.Context(), name, 0).Val()), "b-per-key")
				b.ReportMetric(float64(len(name)), "key-bytes")
			})
		}
	}
}

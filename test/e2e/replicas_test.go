//go:build e2e

package e2e_test

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// TestTwoEnvoysShareLimitsThroughRedis sends the calls of two Envoys to two replicas,
// which count in one Redis.
func TestTwoEnvoysShareLimitsThroughRedis(t *testing.T) {
	redis, limits := redistest.Start(t), exampleLimits(t)
	firstReplica := startRLS(t, limits, "REDIS_URL="+redis.Addr, "REDIS_TIMEOUT=10s")
	secondReplica := startRLS(t, limits, "REDIS_URL="+redis.Addr, "REDIS_TIMEOUT=10s")
	envoys := []*envoy{exampleConfig(t, "envoy.yaml", firstReplica, secondReplica).start(), exampleConfig(t, "envoy.yaml", firstReplica, secondReplica).start()}
	for name, test := range map[string]struct {
		call call
		want int64
	}{
		"fixed_window":   {call{"/net", "x-forwarded-for: 10.0.0.1"}, 20},
		"sliding_window": {call{"/real-ip", "x-real-ip: 10.0.0.1"}, 15},
		"sliding_log":    {call{"/search?key=k1"}, 30},
	} {
		t.Run(name, func(t *testing.T) {
			awaitTimeLeft(time.Minute, 15*time.Second)
			var passedCount atomic.Int64
			var callers sync.WaitGroup
			for i := range 8 {
				callers.Go(func() {
					for range 20 {
						a, err := envoys[i%2].trySend(test.call)
						if assert.NoError(t, err) && a.status == http.StatusOK {
							passedCount.Add(1)
						}
					}
				})
			}
			callers.Wait()
			assert.Equal(t, test.want, passedCount.Load())
		})
	}
	for i, r := range []*rls{firstReplica, secondReplica} {
		assert.Regexp(t, `(?m)^rls::`+r.grpc+`::rq_success::[1-9]`, envoys[0].adminPage("/clusters"), "replica %d got calls", i)
	}
}

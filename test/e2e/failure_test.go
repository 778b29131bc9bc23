//go:build e2e

package e2e_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// TestEnvoyFollowsFailureModeWithoutRLS kills or freezes the only replica. A call to the
// killed replica fails at once, and to the frozen replica after the filter's timeout.
func TestEnvoyFollowsFailureModeWithoutRLS(t *testing.T) {
	for name, breakReplica := range map[string]func(*rls){
		"killed": func(r *rls) { r.kill() },
		"frozen": (*rls).freeze,
	} {
		for deny, want := range map[bool]int{false: http.StatusOK, true: http.StatusInternalServerError} {
			t.Run(fmt.Sprintf("%s, failure_mode_deny %v", name, deny), func(t *testing.T) {
				service := startRLS(t, exampleLimits(t))
				config := exampleConfig(t, "envoy.yaml", service)
				config.editFilter(func(f *ratelimitv3.RateLimit) {
					f.FailureModeDeny, f.Timeout = deny, durationpb.New(100*time.Millisecond)
				})
				envoy := config.start()
				polltest.Until(t, maxWait, func() bool {
					return envoy.send(t, call{"/plan"}).status == http.StatusTooManyRequests
				})
				breakReplica(service)
				for range 5 {
					start := time.Now()
					assert.Equal(t, want, envoy.send(t, call{"/plan"}).status)
					assert.Less(t, time.Since(start), 5*time.Second)
				}
			})
		}
	}
}

// TestFallbackRatioAppliesWithoutRedis kills Redis and restarts it.
func TestFallbackRatioAppliesWithoutRedis(t *testing.T) {
	redis := redistest.Start(t)
	service := startRLS(t, exampleLimits(t), "REDIS_URL="+redis.Addr, "REDIS_FALLBACK_RATIO=0.4", "REDIS_TIMEOUT=1s")
	envoy := exampleConfig(t, "envoy.yaml", service).start()
	countPassed := func(key string) (n int) {
		awaitTimeLeft(time.Minute, 10*time.Second)
		for range 60 {
			answer := envoy.send(t, call{"/search?key=" + key})
			require.Contains(t, []int{http.StatusOK, http.StatusTooManyRequests}, answer.status)
			if answer.status == http.StatusOK {
				n++
			}
		}
		return n
	}
	assert.Equal(t, 30, countPassed("before"))
	redis.Kill()
	assert.Equal(t, 12, countPassed("without-redis"))
	redis.Restart(t)
	polltest.Until(t, maxWait, func() bool {
		envoy.send(t, call{"/search?key=first"})
		return len(redis.Client(t).Keys(t.Context(), "*first*").Val()) > 0
	})
	assert.Equal(t, 30, countPassed("restarted"))
}

// TestRLSAnswersWithinEnvoyTimeoutWhenRedisHangs sets REDIS_TIMEOUT far above Envoy's
// timeout. rls must answer within the deadline that Envoy sends.
func TestRLSAnswersWithinEnvoyTimeoutWhenRedisHangs(t *testing.T) {
	redis := redistest.Start(t)
	service := startRLS(t, exampleLimits(t), "REDIS_URL="+redis.Addr, "REDIS_TIMEOUT=20s")
	config := exampleConfig(t, "envoy.yaml", service)
	config.editFilter(func(f *ratelimitv3.RateLimit) { f.FailureModeDeny, f.Timeout = true, durationpb.New(2*time.Second) })
	envoy := config.start()
	awaitTimeLeft(time.Minute, 20*time.Second)
	require.Equal(t, http.StatusOK, envoy.send(t, call{"/search?key=before"}).status)
	redis.Pause()
	for i := range 15 {
		assert.Equal(t, http.StatusOK, envoy.send(t, call{"/search?key=k1"}).status, "call %d", i+1)
	}
	assert.Equal(t, http.StatusTooManyRequests, envoy.send(t, call{"/search?key=k1"}).status, "half of 30")
}

//go:build e2e

package e2e_test

import (
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/redistest"
)

// TestTwoEnvoysShareOneBudget has both ask both replicas, which count in one Redis.
func TestTwoEnvoysShareOneBudget(t *testing.T) {
	redis, limits := redistest.Start(t), exampleLimits(t)
	one := startRLS(t, limits, "REDIS_URL="+redis.Addr, "REDIS_TIMEOUT=10s")
	two := startRLS(t, limits, "REDIS_URL="+redis.Addr, "REDIS_TIMEOUT=10s")
	envoys := []*envoy{example(t, "envoy.yaml", one, two).start(), example(t, "envoy.yaml", one, two).start()}
	for name, c := range map[string]struct {
		call call
		want int64
	}{
		"fixed_window":   {call{"/net", "x-forwarded-for: 10.0.0.1"}, 20},
		"sliding_window": {call{"/real-ip", "x-real-ip: 10.0.0.1"}, 15},
		"sliding_log":    {call{"/search?key=k1"}, 30},
	} {
		t.Run(name, func(t *testing.T) {
			room(time.Minute, 15*time.Second)
			var passed atomic.Int64
			var callers sync.WaitGroup
			for i := range 8 {
				callers.Go(func() {
					for range 20 {
						a, err := envoys[i%2].try(c.call)
						if assert.NoError(t, err) && a.status == http.StatusOK {
							passed.Add(1)
						}
					}
				})
			}
			callers.Wait()
			assert.Equal(t, c.want, passed.Load())
		})
	}
	for i, r := range []*rls{one, two} {
		assert.Regexp(t, `(?m)^rls::`+r.grpc+`::rq_success::[1-9]`, envoys[0].ask("/clusters"), "replica %d was asked", i)
	}
}

// TestARollingRestartIsNotNoticed replaces both replicas under load. failure_mode_deny
// shows any call to rls that fails as a 500.
func TestARollingRestartIsNotNoticed(t *testing.T) {
	redis, limits := redistest.Start(t), exampleLimits(t)
	env := []string{"REDIS_URL=" + redis.Addr, "REDIS_TIMEOUT=5s", "DRAIN_DELAY=4s"}
	replicas := []*rls{startRLS(t, limits, env...), startRLS(t, limits, env...)}
	c := example(t, "envoy.yaml", replicas...)
	c.filter(func(f *ratelimitv3.RateLimit) { f.FailureModeDeny = true })
	e := c.start()

	load := e.load(4, call{"/search?key=k1"})
	for i, old := range replicas {
		old.stop()
		_, port, err := net.SplitHostPort(old.grpc)
		require.NoError(t, err)
		replicas[i] = startRLS(t, limits, append(env, "GRPC_PORT="+port)...)
		replicas[i].await("health in Envoy's eyes", func() bool {
			return strings.Count(e.ask("/clusters"), "rls::"+old.grpc+"::health_flags::healthy\n") == 1
		})
	}
	seen := load.stop(t)
	assert.Positive(t, seen[http.StatusOK])
	assert.Positive(t, seen[http.StatusTooManyRequests])
	assert.Len(t, seen, 2, "nothing else")
}

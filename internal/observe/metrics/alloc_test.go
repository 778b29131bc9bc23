//go:build !race

// The race detector empties pools at random, so allocations are counted without it.

package metrics

import (
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/service"
)

func TestCountingHitsDoesNotAllocate(t *testing.T) {
	fixture := newRuleFixture(t, perValue, local.New(local.Options{}), RuleOptions{NearLimitRatio: 0.8, MaxSeries: 2})
	fixture.hit(1, "user", "a")
	fixture.hit(1, "user", "b")
	for _, key := range []string{"plain", "user", "both"} {
		for _, value := range []string{"a", "c"} {
			fixture.hit(1, key, value)
			allocsPerCall := func(observers ...service.Observer) float64 {
				store := new(descriptors.Store)
				store.Set(fixture.store.Load())
				rateLimiter := service.New(service.Options{Limits: store, Limiter: local.New(local.Options{}), Observers: observers})
				req := &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{{Entries: entriesOf(key, value)}}}
				return testing.AllocsPerRun(1000, func() { _, _ = rateLimiter.ShouldRateLimit(t.Context(), req) })
			}
			assert.Equal(t, allocsPerCall(), allocsPerCall(fixture.rules), "%s=%s", key, value)
		}
	}
}

//go:build !race

// The race detector empties pools at random, so allocations are counted without it.

package main

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/metrics"
	"github.com/seed-81f232ab/rls/live"
	"github.com/seed-81f232ab/rls/service"
)

const observedLimits = `
domain: shop
descriptors:
  - {key: any, rate_limit: {unit: year, requests_per_unit: 4000000000}}
  - {key: value, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 4000000000}}
  - {key: denied, rate_limit: {unit: year, requests_per_unit: 0}}
`

// newObservedService returns a service with the observers that serve gives it, or without.
func newObservedService(t testing.TB, observed bool) *service.Service {
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(observedLimits)}}, limitsfile.Options{})
	require.NoError(t, err)
	meter := metrics.New()
	store := &descriptors.Store{Prepare: meter.PrepareRules}
	store.Set(descriptors.Compile(set))
	o := service.Options{Limits: store, Limiter: local.New(local.Options{})}
	if observed {
		s, _, err := env.Load()
		require.NoError(t, err)
		log := slog.New(slog.DiscardHandler)
		decisions := newDecisions(s, meter, log)
		t.Cleanup(decisions.close)
		recorder := live.NewRecorder(s.RedisFallbackRatio, s.TopKeys != string(live.KeysOff))
		o.Observers = callObservers(s, meter, log, append(decisions.observers, recorder)...)
	}
	return service.New(o)
}

func requestFor(key string, descriptors int) *rlsv3.RateLimitRequest {
	req := &rlsv3.RateLimitRequest{Domain: "shop"}
	for i := range descriptors {
		req.Descriptors = append(req.Descriptors, &ratelimitv3.RateLimitDescriptor{
			Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: key, Value: fmt.Sprint("value", i)}},
		})
	}
	return req
}

func TestObserversDoNotAllocate(t *testing.T) {
	off, on := newObservedService(t, false), newObservedService(t, true)
	for _, key := range []string{"any", "value", "denied"} {
		allocs := func(s *service.Service) float64 {
			req := requestFor(key, 2)
			call := func() { _, _ = s.ShouldRateLimit(context.Background(), req) }
			for range 10 {
				call()
			}
			return testing.AllocsPerRun(1000, call)
		}
		assert.Equal(t, allocs(off), allocs(on), key)
	}
}

// BenchmarkObservers measures a call without gRPC, which counts in this process.
func BenchmarkObservers(b *testing.B) {
	for _, key := range []string{"any", "value", "denied"} {
		for _, observed := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/observed=%t", key, observed), func(b *testing.B) {
				s, req := newObservedService(b, observed), requestFor(key, 1)
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						_, _ = s.ShouldRateLimit(context.Background(), req)
					}
				})
			})
		}
	}
}

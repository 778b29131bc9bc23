//go:build !race

// The race detector empties pools at random, so allocations are counted without it.

package main

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/observe/events"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/server"
	"github.com/seed-81f232ab/rls/service"
)

const observedLimits = `
domain: shop
descriptors:
  - {key: any, rate_limit: {unit: year, requests_per_unit: 4000000000}}
  - {key: value, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 4000000000}}
  - {key: denied, rate_limit: {unit: year, requests_per_unit: 0}}
`

// newObservedCall returns a call of a service that counts in this process. If observed is
// true, the call has the observers that serve gives it.
func newObservedCall(t testing.TB, observed bool) func(*rlsv3.RateLimitRequest) {
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(observedLimits)}}, limitsfile.Options{})
	require.NoError(t, err)
	meter := metrics.New()
	store := &descriptors.Store{Prepare: meter.PrepareRules}
	store.Set(descriptors.Compile(set))
	o := service.Options{Limits: store, Limiter: local.New(local.Options{})}
	if observed {
		s, _, err := env.Load()
		require.NoError(t, err)
		e := events.New(events.Options{Metrics: meter, Health: server.NewHealth(), Log: slog.New(slog.DiscardHandler)})
		p := newProcess(t.Context())
		t.Cleanup(p.end)
		_, decisions := newDecisions(p, s, e)
		recorder := live.NewRecorder(meter.OverHits, s.TopKeys != string(live.KeysOff))
		o.Observers = callObservers(s, e, append(decisions, recorder)...)
	}
	svc := service.New(o)
	call := func(req *rlsv3.RateLimitRequest) { _, _ = svc.ShouldRateLimit(context.Background(), req) }
	if !observed {
		return call
	}
	observeCall := meter.Server()("ShouldRateLimit")
	return func(req *rlsv3.RateLimitRequest) {
		start := time.Now()
		call(req)
		observeCall(time.Since(start))
	}
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
	off, on := newObservedCall(t, false), newObservedCall(t, true)
	for _, key := range []string{"any", "value", "denied"} {
		allocs := func(call func(*rlsv3.RateLimitRequest)) float64 {
			req := requestFor(key, 2)
			for range 10 {
				call(req)
			}
			return testing.AllocsPerRun(1000, func() { call(req) })
		}
		assert.Equal(t, allocs(off), allocs(on), key)
	}
}

// BenchmarkObservers measures a call without gRPC, which counts in this process. CPU time is
// less sensitive to other programs than time.
func BenchmarkObservers(b *testing.B) {
	for _, key := range []string{"any", "value", "denied"} {
		for _, observed := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/observed=%t", key, observed), func(b *testing.B) {
				call, req := newObservedCall(b, observed), requestFor(key, 1)
				b.ReportAllocs()
				before := cpuTime()
				for b.Loop() {
					call(req)
				}
				b.ReportMetric(float64(cpuTime()-before)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

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

// newCall returns a function that calls a service, which counts in this process. If isObserved is
// true, the service has the observers that rls serve gives it.
func newCall(t testing.TB, isObserved bool) func(*rlsv3.RateLimitRequest) {
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(observedLimits)}}, limitsfile.Options{})
	require.NoError(t, err)
	meter := metrics.New()
	store := &descriptors.Store{Prepare: meter.PrepareRules}
	store.Set(descriptors.Compile(set))
	options := service.Options{Limits: store, Limiter: local.New(local.Options{})}
	if isObserved {
		settings, _, err := env.Load()
		require.NoError(t, err)
		e := events.New(events.Options{Metrics: meter, Health: server.NewHealth(), Log: slog.New(slog.DiscardHandler)})
		process := newProcess(t.Context())
		t.Cleanup(process.end)
		_, decisions := newDecisionObservers(process, settings, e)
		recorder := live.NewRecorder(meter.OverHits, settings.TopKeys != string(live.KeysOff))
		options.Observers = callObservers(settings, e, append(decisions, recorder)...)
	}
	svc := service.New(options)
	call := func(req *rlsv3.RateLimitRequest) { _, _ = svc.ShouldRateLimit(context.Background(), req) }
	if !isObserved {
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
	plainCall, observedCall := newCall(t, false), newCall(t, true)
	for _, key := range []string{"any", "value", "denied"} {
		allocs := func(call func(*rlsv3.RateLimitRequest)) float64 {
			req := requestFor(key, 2)
			for range 10 {
				call(req)
			}
			return testing.AllocsPerRun(1000, func() { call(req) })
		}
		assert.Equal(t, allocs(plainCall), allocs(observedCall), key)
	}
}

// BenchmarkObservers measures a call without gRPC, which counts in this process. CPU time is
// less sensitive to other programs than time.
func BenchmarkObservers(b *testing.B) {
	for _, key := range []string{"any", "value", "denied"} {
		for _, isObserved := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/observed=%t", key, isObserved), func(b *testing.B) {
				call, req := newCall(b, isObserved), requestFor(key, 1)
				b.ReportAllocs()
				startCPU := cpuTime()
				for b.Loop() {
					call(req)
				}
				b.ReportMetric(float64(cpuTime()-startCPU)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

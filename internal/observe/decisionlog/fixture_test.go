package decisionlog

import (
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/service"
)

// testLimits has a rule that admits two hits of each tenant in a minute.
const testLimits = `
domain: shop
descriptors:
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 2, name: two}
  - key: trial
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 0}
  - key: both
    rate_limits: [{unit: minute, requests_per_unit: 5}, {unit: hour, requests_per_unit: 0, name: none}]
  - {key: free, rate_limit: {unlimited: true}}
  - {key: slot, rate_limit: {algorithm: concurrency, requests_per_unit: 1, hold: 10s}}
`

var testStart = time.Date(2026, 11, 20, 10, 0, 37, 0, time.UTC)

// newClock returns a clock that shows testStart at the first reading, and a millisecond more at each further reading.
func newClock() func() time.Time {
	now := testStart
	return func() time.Time {
		defer func() { now = now.Add(time.Millisecond) }()
		return now
	}
}

// newService returns a service of testLimits that reports to the observers.
func newService(t testing.TB, now func() time.Time, change func(*service.Options), observers ...service.Observer) *service.Service {
	t.Helper()
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(testLimits)}}, limitsfile.Options{})
	require.NoError(t, err)
	store := new(descriptors.Store)
	store.Set(descriptors.Compile(set))
	o := service.Options{Limits: store, Limiter: local.New(local.Options{MaxKeys: 1000}), Now: now, Observers: observers}
	if change != nil {
		change(&o)
	}
	return service.New(o)
}

// request returns a request of domain shop. Each descriptor is written key=value,key=value.
func request(descriptors ...string) *rlsv3.RateLimitRequest {
	req := &rlsv3.RateLimitRequest{Domain: "shop"}
	for _, text := range descriptors {
		d := &ratelimitv3.RateLimitDescriptor{}
		for entry := range strings.SplitSeq(text, ",") {
			key, value, _ := strings.Cut(entry, "=")
			d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

// refundOf returns a request that refunds a hit of a descriptor.
func refundOf(descriptor string) *rlsv3.RateLimitRequest {
	req := request(descriptor)
	req.Descriptors[0].IsNegativeHits = true
	return req
}

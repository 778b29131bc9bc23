//go:build parity

package sidebyside

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// limits has rules of all kinds that change metrics. A year has no boundary that a test could
// meet, except one second in a year.
const limits = `
domain: shop
descriptors:
  - {key: plain, rate_limit: {unit: year, requests_per_unit: 25}}
  - {key: valued, value: alice, rate_limit: {unit: year, requests_per_unit: 7}}
  - {key: valued, value: a.b, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: quota, QUOTA, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: zero, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: unlimited, rate_limit: {unlimited: true}}
  - {key: nothing}
  - {key: wildcard, value: x*, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: shared, value: x*, share_threshold: true, rate_limit: {unit: year, requests_per_unit: 9}}
  - {key: detail, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 4}}
  - {key: value, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 4}}
  - {key: value, value: x*, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: replacing, rate_limit: {unit: year, requests_per_unit: 100, name: new, replaces: [{name: old}]}}
  - {key: replaced, rate_limit: {unit: year, requests_per_unit: 4, name: old}}
  - key: two
    rate_limit: {unit: year, requests_per_unit: 6}
    descriptors:
      - {key: plain, rate_limit: {unit: year, requests_per_unit: 5}}
      - {key: valued, value: alice, rate_limit: {unit: year, requests_per_unit: 4}}
      - {key: detail, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 3}}
  - key: three
    value_to_metric: true
    descriptors:
      - key: middle
        value: x*
        share_threshold: true
        descriptors:
          - {key: plain, rate_limit: {unit: year, requests_per_unit: 5}}
          - {key: valued, value: alice, rate_limit: {unit: year, requests_per_unit: 4}}
          - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 3}}
          - {key: value, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 3}}
          - {key: detail, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 3}}
`

var (
	leaves  = []string{"plain", "valued", "shadow", "quota", "zero", "unlimited", "nothing", "wildcard", "shared", "detail", "value", "replacing", "replaced", "unknown"}
	values  = []string{"alice", "bob", "", "a.b", "10.1.2.3", "host:80|x", "x1", "x2", "sp ace"}
	domains = []string{"shop", "shop", "shop", "shop", "shop", "shop", "shop", "shop", "shop", "nowhere", "no.where"}
)

// randomRequest returns a request with one to four descriptors. Some of them have limits of
// their own.
func randomRequest(random *rand.Rand) *rlsv3.RateLimitRequest {
	pick := func(list []string) string { return list[random.IntN(len(list))] }
	req := &rlsv3.RateLimitRequest{Domain: pick(domains), HitsAddend: uint32(max(random.IntN(6)-2, 0))}
	for range 1 + random.IntN(4) {
		descriptor := &ratelimitv3.RateLimitDescriptor{}
		add := func(key, value string) {
			descriptor.Entries = append(descriptor.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		switch random.IntN(6) {
		case 0, 1:
			add("two", pick(values))
		case 2:
			add("three", pick(values))
			add("middle", pick([]string{"x1", "x2"}))
		}
		if len(descriptor.Entries) == 0 || random.IntN(8) > 0 {
			add(pick(leaves), pick(values))
		}
		if random.IntN(4) == 0 {
			descriptor.HitsAddend = wrapperspb.UInt64(uint64(random.IntN(6)))
		}
		if random.IntN(12) == 0 {
			// With its local cache, the incumbent denies other limits of the same key too.
			descriptor.Entries[0].Key = "own"
			descriptor.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 3, Unit: 6}
		}
		req.Descriptors = append(req.Descriptors, descriptor)
	}
	return req
}

// request returns a request with one descriptor of one entry.
func request(domain, key, value string) *rlsv3.RateLimitRequest {
	return &rlsv3.RateLimitRequest{Domain: domain, Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: key, Value: value}}},
	}}
}

func TestCountersEqualThoseOfTheIncumbent(t *testing.T) {
	for name, env := range map[string][]string{
		"without local cache": {"LOCAL_CACHE_SIZE_IN_BYTES=0"},
		"with local cache":    {"LOCAL_CACHE_SIZE_IN_BYTES=1000000"},
		"another near limit":  {"LOCAL_CACHE_SIZE_IN_BYTES=0", "NEAR_LIMIT_RATIO=0.29"},
		"global shadow mode":  {"LOCAL_CACHE_SIZE_IN_BYTES=0", "SHADOW_MODE=true"},
	} {
		t.Run(name, func(t *testing.T) {
			redis := redistest.Start(t)
			env = append([]string{"REDIS_URL=" + redis.Addr, "REDIS_SOCKET_TYPE=tcp"}, env...)
			// The versions of the incumbent differ in the overall code of quota mode.
			quotaMode := fmt.Sprintf("quota_mode: %t", name != "global shadow mode")
			limits := limitsFiles{"limits": strings.ReplaceAll(limits, "QUOTA", quotaMode)}
			ours := startRLS(t, limits, env...)
			theirs := startIncumbent(t, limits, env...)
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			random := rand.New(rand.NewPCG(seed, 0))
			for range 240 {
				req := randomRequest(random)
				_, err := theirs.call(t, req)
				assert.NoError(t, err, "%v", req)
				_, err = ours.call(t, req)
				assert.NoError(t, err, "%v", req)
			}
			for range 3 {
				_, err := ours.call(t, &rlsv3.RateLimitRequest{Domain: "shop"})
				assert.Error(t, err)
				_, err = theirs.call(t, &rlsv3.RateLimitRequest{Domain: "shop"})
				assert.Error(t, err)
			}
			got, want := compareMetrics(t, ours, theirs)
			for deadline := time.Now().Add(20 * time.Second); !maps.Equal(got, want) && time.Now().Before(deadline); got, want = compareMetrics(t, ours, theirs) {
				time.Sleep(100 * time.Millisecond) // the incumbent publishes its counters once a second
			}
			assert.Equal(t, want, got)
			assert.Greater(t, len(want), 100, "enough counters are compared")
			for _, kind := range []string{
				"total_hits", "within_limit", "near_limit", "over_limit", "shadow_mode", "domain_not_found",
				"should_rate_limit_error service_error", "total_requests ShouldRateLimit",
			} {
				assert.True(t, hasCounter(want, kind), "no %s", kind)
			}
			assert.Equal(t, name == "with local cache", hasCounter(want, localCacheKind))
			assert.Equal(t, name == "global shadow mode", hasCounter(want, "global_shadow_mode"))
		})
	}
}

// hasCounter reports whether the name of a counter begins with kind.
func hasCounter(counters map[string]float64, kind string) bool {
	for name := range counters {
		if strings.HasPrefix(name, kind) {
			return true
		}
	}
	return false
}

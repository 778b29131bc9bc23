package metrics

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/local"
)

const perValue = `
domain: d
descriptors:
  - {key: user, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: both, detailed_metric: true, rate_limits: [{unit: hour, requests_per_unit: 10}, {unit: year, requests_per_unit: 10}]}
  - {key: plain, rate_limit: {unit: year, requests_per_unit: 10}, descriptors: [{key: b, descriptors: [
      {key: c, rate_limit: {unit: year, requests_per_unit: 10}},
      {key: d, rate_limit: {unit: year, requests_per_unit: 10}}]}]}
`

const totalHits = "ratelimit_service_rate_limit_total_hits"

func newPerValueFixture(t testing.TB, maxSeries int) *ruleFixture {
	return newRuleFixture(t, perValue, local.New(local.Options{}), RuleOptions{MaxSeries: maxSeries})
}

func TestSeriesHaveTheLabelsOfTheIncumbentAndTheRule(t *testing.T) {
	fixture := newPerValueFixture(t, 10)
	fixture.hit(1, "user", "10.0.0.1")
	fixture.hit(2, "user", "a:80|b")
	fixture.hit(3, "user", "www.example.com")
	fixture.hit(4, "both", "x")
	fixture.hit(5, "plain", "x")
	fixture.hit(6, "plain", "x", "b", "y", "c", "z")
	fixture.hit(7, "plain", "x", "b", "y", "d", "z")
	fixture.sendTo("d", &ratelimitv3.RateLimitDescriptor{
		Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "user", Value: "x"}},
		Limit:   &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: 4},
	})
	assertMetrics(t, fixture.Metrics, totalHits+`{domain="d",key1="user_10_0_0_1",key2="",rule="d > user=10.0.0.1"} 1
`+totalHits+`{domain="d",key1="user_a_80_b",key2="",rule="d > user=a:80|b"} 2
`+totalHits+`{domain="d",key1="user_www",key2="example",rule="d > user=www.example.com"} 3
`+totalHits+`{domain="d",key1="both_x",key2="",rule="d > both=x (per hour)"} 4
`+totalHits+`{domain="d",key1="both_x",key2="",rule="d > both=x (per year)"} 4
`+totalHits+`{domain="d",key1="plain",key2="",rule="d > plain"} 5
`+totalHits+`{domain="d",key1="plain",key2="b",rule="d > plain > b > c"} 6
`+totalHits+`{domain="d",key1="plain",key2="b",rule="d > plain > b > d"} 7
`+totalHits+`{domain="d",key1="user_x",key2="",rule="d > the request's own limit > user=x"} 1
`, totalHits)
}

func TestAllCountsOfARuleAreExported(t *testing.T) {
	fixture := newRuleFixture(t, tenPerYear, local.New(local.Options{}), RuleOptions{NearLimitRatio: 0.8})
	fixture.hit(5, "shadow", "x")
	fixture.hit(4, "shadow", "x")
	const labels = `{domain="d",key1="shadow",key2="",rule="d > shadow"}`
	const prefix = "ratelimit_service_rate_limit_"
	assertMetrics(t, fixture.Metrics,
		prefix+"total_hits"+labels+" 9\n"+prefix+"within_limit"+labels+" 0\n"+prefix+"near_limit"+labels+" 1\n"+
			prefix+"over_limit"+labels+" 7\n"+prefix+"over_limit_with_local_cache"+labels+" 0\n"+prefix+"shadow_mode"+labels+" 7\n",
		prefix+"total_hits", prefix+"within_limit", prefix+"near_limit", prefix+"over_limit", prefix+"over_limit_with_local_cache", prefix+"shadow_mode")
}

func TestSeriesWithTheSameLabelsAreAdded(t *testing.T) {
	fixture := newPerValueFixture(t, 1)
	fixture.hit(1, "user", "other")
	fixture.hit(2, "user", "x")
	fixture.hit(3, "user", "y")
	assertMetrics(t, fixture.Metrics, totalHits+`{domain="d",key1="user_other",key2="",rule="d > user=other"} 6`+"\n", totalHits)
	assert.EqualValues(t, 6, fixture.Rules()[0].Total)
}

func TestChangedFlagsStartNewSeries(t *testing.T) {
	fixture := newPerValueFixture(t, 10)
	fixture.hit(1, "user", "x")
	fixture.load(strings.ReplaceAll(perValue, "value_to_metric", "share_threshold: false, quota_mode"))
	fixture.hit(2, "user", "x")
	assertMetrics(t, fixture.Metrics, totalHits+`{domain="d",key1="user",key2="",rule="d > user"} 2
`+totalHits+`{domain="d",key1="user_x",key2="",rule="d > user=x"} 1
`, totalHits)
	counts := fixture.Rules()
	require.Len(t, counts, 1)
	assert.EqualValues(t, 3, counts[0].Total)
}

func TestValuesBeyondTheMaximumCountAsOther(t *testing.T) {
	var logText bytes.Buffer
	fixture := newRuleFixture(t, perValue, local.New(local.Options{}), RuleOptions{MaxSeries: 3, Log: slog.New(slog.NewTextHandler(&logText, nil))})
	for range 2 {
		for i := range 100 {
			fixture.hit(1, "user", fmt.Sprint("u", i))
		}
	}
	assertMetrics(t, fixture.Metrics, totalHits+`{domain="d",key1="user_u0",key2="",rule="d > user=u0"} 2
`+totalHits+`{domain="d",key1="user_u1",key2="",rule="d > user=u1"} 2
`+totalHits+`{domain="d",key1="user_u2",key2="",rule="d > user=u2"} 2
`+totalHits+`{domain="d",key1="user_other",key2="",rule="d > user=other"} 194
`, totalHits)
	assert.Equal(t, 1, strings.Count(logText.String(), "\n"), logText.String())
	assert.Contains(t, logText.String(), `msg="metrics limited" rule="d > user" setting=METRICS_MAX_SERIES max_series=3`)
}

func TestLongValuesCountAsOther(t *testing.T) {
	fixture := newPerValueFixture(t, 3)
	fixture.hit(1, "user", strings.Repeat("x", 300))
	fixture.hit(1, "user", "y")
	assertMetrics(t, fixture.Metrics, totalHits+`{domain="d",key1="user_y",key2="",rule="d > user=y"} 1
`+totalHits+`{domain="d",key1="user_other",key2="",rule="d > user=other"} 1
`, totalHits)
}

func TestUnknownDomainsAreCountedUpToAMaximum(t *testing.T) {
	fixture := newPerValueFixture(t, 2)
	twoDescriptors := []*ratelimitv3.RateLimitDescriptor{{}, {}}
	for _, domain := range []string{"a.b", "b", "c", "a.b", strings.Repeat("x", 300)} {
		fixture.sendTo(domain, twoDescriptors...)
	}
	fixture.sendTo("d", twoDescriptors...)
	fixture.sendTo("", twoDescriptors...)
	const name = "ratelimit_service_rate_limit_domain_not_found"
	assertMetrics(t, fixture.Metrics, name+`{domain="a.b"} 4
`+name+`{domain="b"} 2
`+name+`{domain="other"} 4
`, name)
}

func TestDescriptorsWithoutARuleAreCountedByDomain(t *testing.T) {
	fixture := newPerValueFixture(t, 2)
	descriptor := func(key string) *ratelimitv3.RateLimitDescriptor {
		return &ratelimitv3.RateLimitDescriptor{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: key, Value: "x"}}}
	}
	fixture.sendTo("d", descriptor("user"), descriptor("usr"))
	fixture.sendTo("d", descriptor("usr"))
	fixture.sendTo("unknown", descriptor("usr"))
	const name = "rls_unmatched_descriptors_total"
	assertMetrics(t, fixture.Metrics, name+`{domain="d"} 2
`, name)
}

func TestIdleValuesMakeRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newPerValueFixture(t, 2)
		hitAll := func(values ...string) {
			for _, value := range values {
				fixture.hit(1, "user", value)
			}
			_ = fixture.Rules()
		}
		assertValues := func(want ...string) {
			t.Helper()
			var got []string
			for _, s := range fixture.rules.limits.allLimits(time.Now())[0].valueSeries.values.allValues() {
				got = append(got, strings.TrimPrefix(s.labels()[1], "user_"))
			}
			assert.ElementsMatch(t, want, got)
		}
		hitAll("busy", "idle", "new")
		assertValues("busy", "idle")
		time.Sleep(idleValueTTL / 2)
		hitAll("busy", "new")
		time.Sleep(idleValueTTL / 2)
		hitAll()
		assertValues("busy")
		hitAll("new", "newer")
		assertValues("busy", "new")
		assert.EqualValues(t, 7, fixture.Rules()[0].Total)
	})
}

func TestFloodOfRandomValuesLeavesSeriesBounded(t *testing.T) {
	const callers, maxBytes = 4, 1 << 20
	values := 100_000
	if os.Getenv("RLS_TEST_FULL") != "" {
		values = 1_000_000
	}
	fixture := newPerValueFixture(t, 1000)
	rule := fixture.store.Load().Domain("d").Match(entriesOf("user", "x"))
	fixture.hit(1, "user", "first")
	limit := rule.Limits[0].Metrics.Load().(*limitSeries)
	bytesBefore := heapBytes()
	var callerGroup sync.WaitGroup
	for caller := range callers {
		callerGroup.Go(func() {
			entries := entriesOf("user", "")
			for i := range values / callers {
				entries[0].Value = fmt.Sprintf("00000000-0000-0000-0000-%d-%010d", caller, i)
				fixture.rules.seriesOf(limit, "d", rule, entries).withinLimit.Add(1)
			}
		})
	}
	callerGroup.Wait()
	growth := heapBytes() - bytesBefore
	t.Logf("%d bytes for %d values", growth, values)
	assert.Less(t, growth, int64(maxBytes))
	assert.Len(t, limit.valueSeries.values.allValues(), 1000)
	assert.EqualValues(t, values+1, fixture.Rules()[0].Total)
	assert.Greater(t, limit.valueSeries.otherSeries.Load().withinLimit.Load(), uint64(values-1000))
}

// heapBytes returns the bytes that are in use after a garbage collection.
func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestConcurrentHitsOfOneValueHaveOneSeries(t *testing.T) {
	fixture := newPerValueFixture(t, 100)
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for i := range 1000 {
				fixture.hit(1, "user", fmt.Sprint(i%50))
			}
		})
	}
	callers.Wait()
	counts := fixture.Rules()
	require.Len(t, counts, 1)
	assert.EqualValues(t, 8000, counts[0].Total)
	flags := fixture.store.Load().Domain("d").Match(entriesOf("user", "x")).MetricFlags()
	assert.Len(t, fixture.rules.limits.find(limitName{rule: "d > user", flags: flags}).valueSeries.values.allValues(), 50)
}

package metrics

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/fallback"
	"github.com/seed-81f232ab/rls/limit"
)

func TestDecisionsWithoutRedisAreCountedByReason(t *testing.T) {
	metrics := New()
	metrics.Fallback()
	serviceMetrics := metrics.Service()
	degradedResult := func(reason backend.Reason, mode limit.FailureMode, allowed bool) backend.Result {
		return backend.Result{Source: backend.SourceFallback, Reason: reason, Mode: mode, Result: limit.Result{Allowed: allowed}}
	}
	observeCall(t, serviceMetrics, "plain", backend.Result{Source: backend.SourceRedis})
	observeCall(t, serviceMetrics, "plain", degradedResult(backend.ReasonLate, limit.FailLocal, true))
	observeCall(t, serviceMetrics, "plain", degradedResult(backend.ReasonLate, limit.FailLocal, true))
	observeCall(t, serviceMetrics, "plain", degradedResult(backend.ReasonOverload, limit.FailLocal, false))
	observeCall(t, serviceMetrics, "plain", degradedResult(backend.ReasonBreakerOpen, limit.FailDeny, false))
	observeCall(t, serviceMetrics, "shadow", degradedResult(backend.ReasonOutage, limit.FailDeny, false))
	families, err := metrics.registry.Gather()
	require.NoError(t, err)
	counts := map[string]float64{}
	for _, family := range families {
		if family.GetName() != "rls_decisions_without_redis_total" {
			continue
		}
		assert.Len(t, family.GetMetric(), 4*3*2)
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, l := range metric.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			if n := metric.GetCounter().GetValue(); n > 0 {
				counts[strings.Join(labels, " ")] = n
			}
		}
	}
	assert.Equal(t, map[string]float64{
		"OK local late": 2, "OVER_LIMIT local overload": 1, "OVER_LIMIT deny breaker_open": 1, "OK deny outage": 1,
	}, counts)
}

func TestPriceOfTheOutageIsReadByEachScrape(t *testing.T) {
	metrics, status := New(), fallback.Status{Breakers: make([]fallback.BreakerStatus, 1)}
	metrics.FallbackStatus([]Shard{{Server: "main"}}, func() fallback.Status { return status })
	names := []string{
		"rls_outage_start_timestamp_seconds", "rls_outage_duration_seconds", "rls_outage_calls", "rls_outage_admitted_calls",
		"rls_outage_admitted_hits", "rls_outage_max_excess_hits", "rls_outage_limit_max_excess_hits",
	}
	assertMetrics(t, metrics, `
rls_outage_admitted_calls 0
rls_outage_admitted_hits 0
rls_outage_calls 0
rls_outage_duration_seconds 0
rls_outage_max_excess_hits 0
rls_outage_start_timestamp_seconds 0
`, names...)
	start := time.UnixMilli(1_700_000_000_500)
	status.Outage = fallback.Outage{
		Start: start, End: start.Add(90 * time.Second), Calls: 5, AdmittedCalls: 4, AdmittedHits: 7, MaxExcessHits: 6,
		Limits: []fallback.LimitPrice{{Rule: "shop > tenant", Limit: "10 per day", MaxExcessHits: 6}, {Rule: fallback.OtherRules}},
	}
	assertMetrics(t, metrics, `
rls_outage_admitted_calls 4
rls_outage_admitted_hits 7
rls_outage_calls 5
rls_outage_duration_seconds 90
rls_outage_limit_max_excess_hits{limit="",rule="other"} 0
rls_outage_limit_max_excess_hits{limit="10 per day",rule="shop > tenant"} 6
rls_outage_max_excess_hits 6
rls_outage_start_timestamp_seconds 1.7000000005e+09
`, names...)
}

func TestMetricsShowStateOfBreakersAndTimeInEachState(t *testing.T) {
	metrics := New()
	open := fallback.BreakerStatus{State: fallback.Open, TimeByState: [3]time.Duration{time.Minute, time.Second, 2 * time.Second}}
	metrics.FallbackStatus([]Shard{{"main", "0"}, {"main", "1"}}, func() fallback.Status {
		return fallback.Status{Breakers: []fallback.BreakerStatus{{}, open}}
	})
	assertMetrics(t, metrics, `
rls_redis_breakers{server="main",shard="0",state="closed"} 1
rls_redis_breakers{server="main",shard="0",state="failing"} 0
rls_redis_breakers{server="main",shard="0",state="open"} 0
rls_redis_breakers{server="main",shard="1",state="closed"} 0
rls_redis_breakers{server="main",shard="1",state="failing"} 0
rls_redis_breakers{server="main",shard="1",state="open"} 1
rls_redis_breaker_seconds_total{server="main",shard="0",state="closed"} 0
rls_redis_breaker_seconds_total{server="main",shard="0",state="failing"} 0
rls_redis_breaker_seconds_total{server="main",shard="0",state="open"} 0
rls_redis_breaker_seconds_total{server="main",shard="1",state="closed"} 60
rls_redis_breaker_seconds_total{server="main",shard="1",state="failing"} 1
rls_redis_breaker_seconds_total{server="main",shard="1",state="open"} 2
`, "rls_redis_breakers", "rls_redis_breaker_seconds_total")
}

func TestManyShardsShareTheirSeries(t *testing.T) {
	metrics := New()
	shards := []Shard{{"per_second", "0"}}
	for i := range maxShardSeries + 1 {
		shards = append(shards, Shard{"main", fmt.Sprint(i)})
	}
	metrics.FallbackStatus(shards, func() fallback.Status { return fallback.Status{Breakers: make([]fallback.BreakerStatus, len(shards))} })
	n, err := testutil.GatherAndCount(metrics.registry, "rls_redis_breakers")
	require.NoError(t, err)
	assert.Equal(t, 2*len(fallback.BreakerStates), n)
	assertMetrics(t, metrics, `
rls_redis_breakers{server="main",shard="all",state="closed"} 65
rls_redis_breakers{server="main",shard="all",state="failing"} 0
rls_redis_breakers{server="main",shard="all",state="open"} 0
rls_redis_breakers{server="per_second",shard="0",state="closed"} 1
rls_redis_breakers{server="per_second",shard="0",state="failing"} 0
rls_redis_breakers{server="per_second",shard="0",state="open"} 0
`, "rls_redis_breakers")
}

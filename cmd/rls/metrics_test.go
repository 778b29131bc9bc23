package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

const shadowTwoPerYear = `
domain: shop
descriptors:
  - {key: tenant, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
`

func TestShadowDenialsByTheDenyCacheAreCounted(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	service := start(t, []string{"REDIS_URL=" + redis.Addr, "REDIS_TIMEOUT=20s"}, "--limits", writeFile(t, "limits.yaml", shadowTwoPerYear))
	out, _, _ := rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme", "-n", "50")
	assert.Contains(t, out, "50 OK, 0 OVER_LIMIT")
	_, metrics := get(t, "http://"+service.debug+"/metrics")
	assert.Contains(t, metrics, `rls_decisions_total{result="ok",source="redis"} 2`)
	assert.Contains(t, metrics, `rls_decisions_total{result="shadowed",source="redis"} 1`)
	assert.Contains(t, metrics, `rls_decisions_total{result="shadowed",source="deny_cache"} 47`)
	const labels = `{domain="shop",key1="tenant",key2="",rule="shop > tenant"}`
	for name, want := range map[string]int{
		"total_hits": 50, "within_limit": 2, "near_limit": 1, "over_limit": 48, "over_limit_with_local_cache": 47, "shadow_mode": 48,
	} {
		assert.Contains(t, metrics, fmt.Sprintf("ratelimit_service_rate_limit_%s%s %d\n", name, labels, want))
	}
	assert.Contains(t, metrics, "rls_deny_cache_denials_total 47")
}

func TestFallbackMetricsGrowDuringTheOutage(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	service := start(t, []string{"REDIS_URL=" + redis.Addr}, "--limits", writeFile(t, "limits.yaml", threePerYear))
	polltest.Until(t, maxWait, func() bool { return strings.Contains(service.logText(), "counting in Redis") })
	redis.Kill()
	hits := 0
	polltest.Until(t, maxWait, func() bool {
		rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme", "-n", "4")
		hits += 4
		_, metrics := get(t, "http://"+service.debug+"/metrics")
		assert.Contains(t, metrics, fmt.Sprintf("rls_redis_fallback_hits_total %d\n", hits))
		return strings.Contains(metrics, "rls_redis_up 0\n")
	})
	polltest.Until(t, maxWait, func() bool {
		_, metrics := get(t, "http://"+service.debug+"/metrics")
		return !strings.Contains(metrics, "rls_redis_down_seconds_total 0\n")
	})
	rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=other")
	_, metrics := get(t, "http://"+service.debug+"/metrics")
	assert.Contains(t, metrics, `rls_redis_breakers{server="main",shard="0",state="open"} 1`)
	assert.Contains(t, metrics, `rls_outage_limit_max_excess_hits{limit="3 per year",rule="shop > tenant"} `)
	assert.Regexp(t, `rls_decisions_without_redis_total{code="OK",mode="local",reason="breaker_open"} [1-9]`, metrics)
	assert.Regexp(t, `rls_redis_errors_total{kind="(refused|reset)",server="main"} [1-9]`, metrics)
	assert.Regexp(t, `rls_outage_admitted_hits [1-9]`, metrics)

	redis.Restart(t)
	service.awaitLog("Redis outage ended")
	assert.Regexp(t, `Redis outage ended.* calls=[1-9].* most_beyond_limits=[1-9].* counters_kept=false`, service.logText(), "Redis has lost its counters")
}

func TestLateAnswersHaveAPriceAndALogLine(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	service := start(t, []string{"REDIS_URL=" + redis.Addr, "REDIS_TIMEOUT=200ms"}, "--limits", writeFile(t, "limits.yaml", tenPerYear))
	service.awaitLog("counting in Redis")
	redis.Pause()
	rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme", "--timeout", "20s")
	redis.Resume()
	_, metrics := get(t, "http://"+service.debug+"/metrics")
	assert.Regexp(t, `rls_decisions_without_redis_total{code="OK",mode="local",reason="(late|overload)"} 1\n`, metrics, "counted while they happen")
	// One call is a blip. With failed probes it can be an outage. If its late answer comes within a second, the price is 0.
	price := regexp.MustCompile(`(for a short time|outage ended).* calls=1 calls_admitted=1 hits_admitted=1 most_beyond_limits=[01] (late|overload)=1`)
	polltest.Until(t, maxWait, func() bool { return price.MatchString(service.logText()) })
}

func TestDocsHaveTheTypeOfEachMetricOfTheProgram(t *testing.T) {
	t.Parallel()
	docs, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	redis := redistest.Start(t)
	service := start(t, []string{"REDIS_URL=" + redis.Addr, "OVERRIDES_ENABLED=true", "DECISION_LOG=all"}, "--limits", writeFile(t, "limits.yaml", tenPerYear))
	rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme")
	rls(t, "hit", "-a", service.grpc, "-d", "unknown", "tenant=acme")
	rls(t, "hit", "-a", service.grpc, "-d", "shop", "nothing=acme")
	_, metrics := get(t, "http://"+service.debug+"/metrics")
	types := regexp.MustCompile(`(?m)^# TYPE ((?:rls|ratelimit)_\w+) (\w+)$`).FindAllStringSubmatch(metrics, -1)
	assert.Greater(t, len(types), 30)
	for _, m := range types {
		assert.Regexp(t, "\\| `"+m[1]+"(\\{[a-z0-9_,]+\\})?` \\| "+m[2]+" \\|", string(docs))
	}
}

package metrics

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/fallback"
	"github.com/seed-81f232ab/rls/backend/lease"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/backend/region"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/observe/candidate"
	"github.com/seed-81f232ab/rls/internal/observe/decisionlog"
	"github.com/seed-81f232ab/rls/internal/server/admission"
	"github.com/seed-81f232ab/rls/internal/source/reload"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
	"github.com/seed-81f232ab/rls/service/quota"
)

// assertMetrics checks the samples of the named metrics. It ignores their help.
func assertMetrics(t *testing.T, m *Metrics, want string, names ...string) {
	t.Helper()
	scrape := scrapeOf(t, m)
	families, err := scrape.Gather()
	require.NoError(t, err)
	help := ""
	for _, family := range families {
		help += "# HELP " + family.GetName() + " " + family.GetHelp() + "\n# TYPE " + family.GetName() + " " + strings.ToLower(family.GetType().String()) + "\n"
	}
	assert.NoError(t, testutil.GatherAndCompare(scrape, strings.NewReader(help+want), names...))
}

// observeCall lets o observe a call with one descriptor, key=x. The backend answers with result.
func observeCall(t *testing.T, observer service.Observer, key string, result backend.Result) {
	t.Helper()
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(`
domain: d
descriptors:
  - {key: plain, rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 10}}
`)}}, limitsfile.Options{})
	require.NoError(t, err)
	store := new(descriptors.Store)
	store.Set(descriptors.Compile(set))
	counters := backendtest.Func(func(_ context.Context, _ time.Time, _ []backend.Hit, results []backend.Result) { results[0] = result })
	rateLimiter := service.New(service.Options{Limits: store, Limiter: counters, Observers: []service.Observer{observer}})
	_, err = rateLimiter.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: key, Value: "x"}}},
	}})
	require.NoError(t, err)
}

func TestDecisionsAreCountedByResultAndSource(t *testing.T) {
	metrics := New()
	allowedResult := limit.Result{Allowed: true}
	s := metrics.Service()
	observeCall(t, s, "plain", backend.Result{Source: backend.SourceRedis, Result: allowedResult})
	observeCall(t, s, "plain", backend.Result{Source: backend.SourceLease, Result: allowedResult})
	observeCall(t, s, "plain", backend.Result{Source: backend.SourceRedis})
	observeCall(t, s, "shadow", backend.Result{Result: allowedResult})
	observeCall(t, s, "shadow", backend.Result{Source: backend.SourceDenyCache})
	observeCall(t, s, "shadow", backend.Result{Source: backend.SourceDenyCache})
	assertMetrics(t, metrics, `
rls_decisions_total{result="ok",source="deny_cache"} 0
rls_decisions_total{result="ok",source="fallback"} 0
rls_decisions_total{result="ok",source="lease"} 1
rls_decisions_total{result="ok",source="local"} 1
rls_decisions_total{result="ok",source="redis"} 1
rls_decisions_total{result="over_limit",source="deny_cache"} 0
rls_decisions_total{result="over_limit",source="fallback"} 0
rls_decisions_total{result="over_limit",source="lease"} 0
rls_decisions_total{result="over_limit",source="local"} 0
rls_decisions_total{result="over_limit",source="redis"} 1
rls_decisions_total{result="shadowed",source="deny_cache"} 2
rls_decisions_total{result="shadowed",source="fallback"} 0
rls_decisions_total{result="shadowed",source="lease"} 0
rls_decisions_total{result="shadowed",source="local"} 0
rls_decisions_total{result="shadowed",source="redis"} 0
`, "rls_decisions_total")
}

func TestOutageOfRedisIsMeasuredWhileItLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := New()
		fallbackMetrics := metrics.Fallback()
		assertOutages := func(want string) {
			t.Helper()
			assertMetrics(t, metrics, want, "rls_redis_up", "rls_redis_down_seconds_total", "rls_redis_state_changes_total",
				"rls_redis_fallback_hits_total", "rls_fallback_replayed_hits_total")
		}
		fallbackMetrics.StateChanged(fallback.StateChange{Down: true})
		fallbackMetrics.HitsServed(30)
		fallbackMetrics.HitsServed(10)
		time.Sleep(1500 * time.Millisecond)
		assertOutages(`
rls_redis_up 0
rls_redis_down_seconds_total 1.5
rls_redis_state_changes_total{state="down"} 1
rls_redis_state_changes_total{state="up"} 0
rls_redis_fallback_hits_total 40
rls_fallback_replayed_hits_total 0
`)
		fallbackMetrics.HitsReplayed(7)
		fallbackMetrics.StateChanged(fallback.StateChange{})
		time.Sleep(time.Hour)
		fallbackMetrics.StateChanged(fallback.StateChange{Down: true})
		time.Sleep(time.Second)
		assertOutages(`
rls_redis_up 0
rls_redis_down_seconds_total 2.5
rls_redis_state_changes_total{state="down"} 2
rls_redis_state_changes_total{state="up"} 1
rls_redis_fallback_hits_total 40
rls_fallback_replayed_hits_total 7
`)
	})
}

func TestDenyCacheIsCounted(t *testing.T) {
	metrics := New()
	d := metrics.DenyCache()
	d.HitDenied(nil)
	d.HitDenied(nil)
	assertMetrics(t, metrics, "rls_deny_cache_denials_total 2\n", "rls_deny_cache_denials_total")
}

func TestLeasesAreCounted(t *testing.T) {
	metrics := New()
	metrics.Leases(func() lease.Stats {
		return lease.Stats{Leases: 2, HeldPermits: 30, TakenPermits: 100, UsedPermits: 40, ReturnedPermits: 20, LapsedPermits: 10, SavedTrips: 35}
	})
	assertMetrics(t, metrics, `
rls_lease_counters 2
rls_lease_permits_held 30
rls_lease_permits_lapsed_total 10
rls_lease_permits_returned_total 20
rls_lease_permits_taken_total 100
rls_lease_permits_used_total 40
rls_lease_trips_saved_total 35
`, "rls_lease_counters", "rls_lease_permits_held", "rls_lease_permits_lapsed_total", "rls_lease_permits_returned_total",
		"rls_lease_permits_taken_total", "rls_lease_permits_used_total", "rls_lease_trips_saved_total")
}

func TestPurchasesOfTheRegionAreCounted(t *testing.T) {
	metrics := New()
	metrics.Regions(func() region.Stats {
		return region.Stats{Trips: 9, BoughtHits: 400, RoundTrip: 80 * time.Millisecond}
	}, func() []redis.Finding { return []redis.Finding{{Check: redis.CheckConnection}} })
	assertMetrics(t, metrics, `
rls_region_bought_hits_total 400
rls_region_cut_off 1
rls_region_round_trip_seconds 0.08
rls_region_settings_differ 0
rls_region_trips_total 9
`, "rls_region_bought_hits_total", "rls_region_cut_off",
		"rls_region_round_trip_seconds", "rls_region_settings_differ", "rls_region_trips_total")
}

func TestQuotasAreCounted(t *testing.T) {
	metrics := New()
	metrics.Quotas(func() quota.Stats {
		return quota.Stats{
			Counts:  quota.Counts{Updates: 1, Failures: 2, Conflicts: 3, IgnoredReports: 4, BlockedStreams: 5, AnswerTime: 1500 * time.Millisecond},
			Streams: 6, Buckets: 7, Fallbacks: 8, Rules: []quota.RuleStats{{Path: "shop > tenant", GrantedRate: 9.5, DemandedRate: 10}},
		}
	})
	assertMetrics(t, metrics, `
rls_quota_buckets 7
rls_quota_demanded{rule="shop > tenant"} 10
rls_quota_fallbacks 8
rls_quota_granted{rule="shop > tenant"} 9.5
rls_quota_reports_ignored_total 4
rls_quota_streams 6
rls_quota_streams_blocked_total 5
rls_quota_update_conflicts_total 3
rls_quota_update_failures_total 2
rls_quota_update_seconds_total 1.5
rls_quota_updates_total 1
`, "rls_quota_buckets", "rls_quota_demanded", "rls_quota_fallbacks", "rls_quota_granted", "rls_quota_reports_ignored_total", "rls_quota_streams",
		"rls_quota_streams_blocked_total", "rls_quota_update_conflicts_total", "rls_quota_update_failures_total", "rls_quota_update_seconds_total", "rls_quota_updates_total")
}

func TestObserversDoNotAllocate(t *testing.T) {
	metrics := New()
	decisions, batches, call := metrics.Service(), metrics.Redis(redis.RoleMain), new(service.Call)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		decisions.CallAnswered(t.Context(), call)
		batches.BatchDone(redis.Batch{Hits: 3})
	}))
}

type localCounters struct{ keys, evictions, bytes int }

func (c *localCounters) Keys() int        { return c.keys }
func (c *localCounters) Evictions() int64 { return int64(c.evictions) }
func (c *localCounters) Bytes() int64     { return int64(c.bytes) }

func TestLocalCountersAreReadByEachScrape(t *testing.T) {
	metrics, counters := New(), &localCounters{}
	metrics.Local(counters.Keys, counters.Evictions, counters.Bytes)
	*counters = localCounters{keys: 5, evictions: 3, bytes: 900}
	assertMetrics(t, metrics, "rls_local_keys 5\nrls_local_evictions_total 3\nrls_local_memory_bytes 900\n", "rls_local_keys", "rls_local_memory_bytes", "rls_local_evictions_total")
}

func TestRefusedConnectionsAreCountedByReason(t *testing.T) {
	metrics := New()
	refusedCounter := metrics.Refused("grpc")
	refusedCounter(admission.ReasonPendingBytes)
	refusedCounter(admission.ReasonPendingBytes)
	metrics.Refused("http")(admission.ReasonConnections)
	assertMetrics(t, metrics, `
rls_connections_refused_total{listener="grpc",reason="peer_cuts"} 0
rls_connections_refused_total{listener="grpc",reason="connections"} 0
rls_connections_refused_total{listener="grpc",reason="frames"} 0
rls_connections_refused_total{listener="grpc",reason="peer_connections"} 0
rls_connections_refused_total{listener="grpc",reason="pending_bytes"} 2
rls_connections_refused_total{listener="http",reason="peer_cuts"} 0
rls_connections_refused_total{listener="http",reason="connections"} 1
rls_connections_refused_total{listener="http",reason="frames"} 0
rls_connections_refused_total{listener="http",reason="peer_connections"} 0
rls_connections_refused_total{listener="http",reason="pending_bytes"} 0
`, "rls_connections_refused_total")
}

func TestReloadsAreCounted(t *testing.T) {
	metrics := New()
	reloadMetrics := metrics.Reload("xds", "overrides")
	reloadMetrics.LimitsLoaded(4)
	reloadMetrics.LimitsRejected(nil)
	reloadMetrics.LimitsRejected(nil)
	reloadMetrics.ConfigProblems(7)
	reloadMetrics.Overrides(reload.OverrideCounts{InForceOverrides: 3, OverridesWithoutEnd: 2, RejectedOverrides: 2, WaitingOverrides: 1, OffRules: 4, OffAll: 1})
	reloadMetrics.SourceState("xds", nil)
	reloadMetrics.LimitsChanged(reload.LimitsChange{Time: time.UnixMilli(1_700_000_000_500), Rules: 12})
	assertMetrics(t, metrics, `
ratelimit_service_config_load_error 2
ratelimit_service_config_load_success 1
rls_config_domains 4
rls_config_in_force_timestamp_seconds 1.7000000005e+09
rls_config_problems 7
rls_config_rules 12
rls_limits_off{scope="all"} 1
rls_limits_off{scope="domain"} 0
rls_limits_off{scope="rule"} 4
rls_overrides{state="in_force"} 3
rls_overrides{state="rejected"} 2
rls_overrides{state="waiting"} 1
rls_overrides_without_end 2
rls_source_up{source="overrides"} 0
rls_source_up{source="xds"} 1
`, "ratelimit_service_config_load_error", "ratelimit_service_config_load_success", "rls_config_domains", "rls_config_problems", "rls_config_rules", "rls_config_in_force_timestamp_seconds", "rls_overrides", "rls_overrides_without_end", "rls_source_up")
	reloadMetrics.SourceState("xds", errors.New("connection refused"))
	assertMetrics(t, metrics, "rls_source_up{source=\"overrides\"} 0\nrls_source_up{source=\"xds\"} 0\n", "rls_source_up")
}

func TestCandidateAndDecisionLogAreReadByEachScrape(t *testing.T) {
	metrics := New()
	c := candidate.Status{Problem: errors.New("a mistake"), Rules: []candidate.RuleCount{{Path: "shop > tenant", NewlyDenied: 3}}}
	c.Calls[candidate.Same], c.TotalCalls[candidate.Same] = 1, 5
	metrics.Candidate(func() candidate.Status { return c })
	l := decisionlog.Stats{Written: 7}
	l.Dropped[decisionlog.DroppedByBuffer] = 2
	metrics.DecisionLog(func() decisionlog.Stats { return l })
	assertMetrics(t, metrics, `
rls_candidate_calls_total{result="dropped"} 0
rls_candidate_calls_total{result="failed"} 0
rls_candidate_calls_total{result="newly_admitted"} 0
rls_candidate_calls_total{result="newly_denied"} 0
rls_candidate_calls_total{result="same"} 5
rls_candidate_newly_denied_total{rule="shop > tenant"} 3
rls_candidate_valid 0
rls_decision_log_dropped_total{reason="buffer_full"} 2
rls_decision_log_dropped_total{reason="rate"} 0
rls_decision_log_dropped_total{reason="write_error"} 0
rls_decision_log_records_total 7
`, "rls_candidate_calls_total", "rls_candidate_newly_denied_total", "rls_candidate_valid", "rls_decision_log_dropped_total", "rls_decision_log_records_total")
}

// newCompleteMetrics returns the Metrics of all packages, with at least one series for each metric.
func newCompleteMetrics(t *testing.T) *Metrics {
	fixture := newRuleFixture(t, tenPerYear, local.New(local.Options{}), RuleOptions{})
	fixture.hit(1, "a", "x")
	fixture.sendTo("unknown", &ratelimitv3.RateLimitDescriptor{})
	fixture.sendTo("d", &ratelimitv3.RateLimitDescriptor{})
	metrics := fixture.Metrics
	metrics.SetCertificateExpiry("grpc", time.Unix(1_800_000_000, 0))
	metrics.Build("v1", "c1", "d1", "go1")
	metrics.Server()("ShouldRateLimit")
	metrics.Reload("file")
	metrics.Service()
	metrics.Fallback()
	metrics.FallbackStatus([]Shard{{Server: "main"}}, func() fallback.Status {
		return fallback.Status{Breakers: make([]fallback.BreakerStatus, 1), Outage: fallback.Outage{Limits: make([]fallback.LimitPrice, 1)}}
	})
	metrics.Redis(redis.Roles[:]...)
	metrics.RedisStatus(redisStatus{})
	metrics.RedisCheck(redis.Roles[:]...)
	metrics.DenyCache()
	metrics.Leases(func() lease.Stats { return lease.Stats{} })
	metrics.Regions(func() region.Stats { return region.Stats{} }, func() []redis.Finding { return nil })
	metrics.Quotas(func() quota.Stats { return quota.Stats{Rules: []quota.RuleStats{{Path: "shop > tenant"}}} })
	metrics.DecisionLog(func() decisionlog.Stats { return decisionlog.Stats{} })
	gate := admission.New(admission.Options{})
	metrics.Admission("grpc", gate.Connections, gate.PendingBytes)
	metrics.Refused("grpc")
	metrics.Callers()
	metrics.TokensFileValidity()
	metrics.RulesDenyingSinceChange(func() []string { return []string{"shop > tenant"} })
	metrics.Candidate(func() candidate.Status {
		return candidate.Status{Rules: []candidate.RuleCount{{Path: "shop > tenant"}}}
	})
	metrics.Local(new(localCounters).Keys, new(localCounters).Evictions, new(localCounters).Bytes)
	metrics.ConfigHash(func() string { return "abc" })
	conditionFailed, conditionNotTested := metrics.Conditions()
	conditionFailed("shop")
	conditionNotTested("shop")
	return metrics
}

func TestNamesFollowPrometheusRules(t *testing.T) {
	problems, err := testutil.GatherAndLint(scrapeOf(t, newCompleteMetrics(t)))
	require.NoError(t, err)
	for _, p := range problems {
		assert.True(t, strings.HasPrefix(p.Metric, "ratelimit_"), "only names of envoyproxy/ratelimit may break the rules: %s: %s", p.Metric, p.Text)
	}
}

// docRow matches a row of docs/metrics.md: name, labels and type of a metric.
var docRow = regexp.MustCompile("(?m)^\\| `((?:rls|ratelimit)_\\w+)(?:\\{([\\w,]+)\\})?` \\| (counter|gauge|histogram) \\| .+ \\|.*\\|$")

func TestDocsListAllMetricsWithTypeAndLabels(t *testing.T) {
	docs, err := os.ReadFile("../../../docs/metrics.md")
	require.NoError(t, err)
	documentedHelps := map[string]string{}
	for _, row := range docRow.FindAllStringSubmatch(string(docs), -1) {
		documentedHelps[row[1]] = row[3] + " " + row[2]
	}
	families, err := scrapeOf(t, newCompleteMetrics(t)).Gather()
	require.NoError(t, err)
	exportedHelps := map[string]string{}
	for _, family := range families {
		name := family.GetName()
		if !strings.HasPrefix(name, "rls_") && !strings.HasPrefix(name, "ratelimit_") {
			continue
		}
		var labels []string
		for _, l := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		exportedHelps[name] = strings.ToLower(family.GetType().String()) + " " + strings.Join(labels, ",")
	}
	assert.Equal(t, exportedHelps, documentedHelps)
}

func TestUnusedPackagesHaveNoMetrics(t *testing.T) {
	n, err := testutil.GatherAndCount(New().registry, "rls_redis_up", "rls_redis_state_changes_total", "rls_source_up", "rls_deny_cache_denials_total")
	require.NoError(t, err)
	assert.Zero(t, n)
}

func TestFailedCallsAreCountedByKind(t *testing.T) {
	metrics := New()
	o := metrics.Service()
	for _, code := range []codes.Code{codes.InvalidArgument, codes.FailedPrecondition, codes.Unavailable, codes.Canceled, codes.DeadlineExceeded, codes.ResourceExhausted} {
		o.CallAnswered(t.Context(), &service.Call{Err: status.Error(code, "failed")})
	}
	o.CallAnswered(t.Context(), &service.Call{GlobalShadow: true, Response: &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_OK}})
	o.CallAnswered(t.Context(), &service.Call{Response: &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_OVER_LIMIT}})
	metrics.CallGivenUp() // a gRPC call that was reset, which rls can have answered
	assertMetrics(t, metrics, `
ratelimit_service_global_shadow_mode 1
ratelimit_service_should_rate_limit_error{err_type="caller_limited"} 1
ratelimit_service_should_rate_limit_error{err_type="given_up"} 1
ratelimit_service_should_rate_limit_error{err_type="redis_error"} 1
ratelimit_service_should_rate_limit_error{err_type="service_error"} 2
rls_calls_total{code="ok"} 1
rls_calls_total{code="over_limit"} 1
`, "rls_calls_total", "ratelimit_service_global_shadow_mode", "ratelimit_service_should_rate_limit_error")
}

func TestCallsAreCountedByMethod(t *testing.T) {
	metrics := New()
	observeMethod := metrics.Server()
	observeShouldRateLimit, observeCheck := observeMethod("ShouldRateLimit"), observeMethod("Check")
	observeShouldRateLimit(30 * time.Microsecond)
	observeShouldRateLimit(20 * time.Second)
	observeCheck(time.Millisecond)
	const times = "ratelimit_service_response_time_seconds"
	assertMetrics(t, metrics, `
ratelimit_service_total_requests{grpc_method="Check"} 1
ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 2
`, "ratelimit_service_total_requests")
	families, err := metrics.registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == times {
			h := family.GetMetric()[1].GetHistogram()
			assert.EqualValues(t, 2, h.GetSampleCount())
			assert.EqualValues(t, 1, h.GetBucket()[0].GetCumulativeCount(), "at most 50 µs")
			assert.InDelta(t, 20.00003, h.GetSampleSum(), 1e-9)
		}
	}
}

func TestConfigHashIsReadByEachScrape(t *testing.T) {
	metrics, hash := New(), ""
	metrics.ConfigHash(func() string { return hash })
	assertMetrics(t, metrics, "", "rls_config_info")
	hash = "0a1b"
	assertMetrics(t, metrics, "rls_config_info{hash=\"0a1b\"} 1\n", "rls_config_info")
}

func TestGoodReadsOfSourcesHaveTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := New()
		reloadMetrics := metrics.Reload("file", "overrides")
		time.Sleep(time.Until(time.Unix(1_700_000_000, 0)))
		reloadMetrics.SourceRead("file")
		assertMetrics(t, metrics, fmt.Sprintf(`
rls_source_last_success_timestamp_seconds{source="file"} %v
rls_source_last_success_timestamp_seconds{source="overrides"} 0
`, 1.7e9), "rls_source_last_success_timestamp_seconds")
	})
}

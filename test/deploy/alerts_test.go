package deploy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	alertsFile  = "deploy/prometheus/alerts.yaml"
	runbookPage = "https://github.com/seed-81f232ab/rls/blob/main/docs/monitoring.md"
)

// readAlerts returns the alerts by name.
func readAlerts(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.Parse([]byte(readFile(t, alertsFile)), false, model.UTF8Validation, parser.NewParser(parser.Options{}))
	require.Empty(t, errs)
	alerts := map[string]rulefmt.Rule{}
	for _, g := range groups.Groups {
		for _, rule := range g.Rules {
			assert.NotContains(t, alerts, rule.Alert, "two alerts have one name")
			alerts[rule.Alert] = rule
		}
	}
	require.NotEmpty(t, alerts)
	return alerts
}

func TestAlertsUseExportedMetrics(t *testing.T) {
	exportedLabels := exportedMetrics(t)
	for _, a := range readAlerts(t) {
		assertExported(t, exportedLabels, a.Expr)
	}
}

func TestAlertsHaveSeverityAndRunbook(t *testing.T) {
	for name, a := range readAlerts(t) {
		assert.Contains(t, []string{"critical", "warning", "info"}, a.Labels["severity"], name)
		assert.NotEmpty(t, a.Annotations["summary"], name)
		assert.Equal(t, runbookPage+"#"+strings.ToLower(name), a.Annotations["runbook_url"], name)
	}
}

func TestMonitoringPageListsEachAlert(t *testing.T) {
	page := readFile(t, "docs/monitoring.md")
	for name, a := range readAlerts(t) {
		wait := "at once"
		if a.For > 0 {
			wait = "after " + a.For.String()
		}
		row := regexp.MustCompile(`(?m)^\| <a id="` + strings.ToLower(name) + `"></a>` + name + ` \| \*\*` + a.Labels["severity"] + `\*\* ` + wait + ` \| .+ \| .+ \|$`)
		assert.Regexp(t, row, page, name)
	}
}

var (
	queryBlock = regexp.MustCompile("(?ms)^ *```promql\n(.*?)^ *```")
	queryCell  = regexp.MustCompile("(?m)^\\| [^|]+\\? \\| `(.+)` \\|$")
)

func TestQueriesInDocsUseExportedMetrics(t *testing.T) {
	exportedLabels := exportedMetrics(t)
	var queries []string
	for _, name := range []string{"docs/operations.md", "docs/monitoring.md"} {
		page := readFile(t, name)
		for _, block := range queryBlock.FindAllStringSubmatch(page, -1) {
			queries = append(queries, strings.Split(strings.TrimSpace(block[1]), "\n")...)
		}
		for _, cell := range queryCell.FindAllStringSubmatch(page, -1) {
			if strings.Contains(cell[1], "rate(") || strings.Contains(cell[1], "_info)") {
				queries = append(queries, cell[1])
			}
		}
	}
	require.Greater(t, len(queries), 8)
	for _, query := range queries {
		assertExported(t, exportedLabels, query)
	}
}

// TestAlertsFire evaluates each alert each minute with the series of a sick and of a healthy
// process. The number in front of a series is its growth in 15 seconds, or its value.
func TestAlertsFire(t *testing.T) {
	const target = `job="rls", instance="a"`
	alerts := readAlerts(t)
	testedAlerts := map[string]bool{}
	for _, test := range []struct {
		alert         string
		sick, healthy []string
		want          string // what the summary contains
	}{
		{
			alert: "RlsNotScraped", want: "at a",
			sick:    []string{"up{" + target + "} 0x200", "rls_build_info{" + target + "} 1x4"},
			healthy: []string{"up{" + target + "} 1x200", "rls_build_info{" + target + "} 1x200"},
		},
		{
			alert: "RlsCallsFail", want: "a fails 666.7m calls a second",
			sick:    []string{`ratelimit_service_should_rate_limit_error{err_type="redis_error", ` + target + `} 0+10x200`, `ratelimit_service_total_requests{grpc_method="ShouldRateLimit", ` + target + `} 0+100x200`},
			healthy: []string{`ratelimit_service_should_rate_limit_error{err_type="given_up", ` + target + `} 0+100x200`, `ratelimit_service_total_requests{grpc_method="ShouldRateLimit", ` + target + `} 0+100x200`},
		},
		{
			alert: "RlsCallsGivenUp", want: "The callers of a give up 2 calls a second",
			sick:    []string{`ratelimit_service_should_rate_limit_error{err_type="given_up", ` + target + `} 0+30x200`},
			healthy: []string{`ratelimit_service_should_rate_limit_error{err_type="redis_error", ` + target + `} 0+30x200`},
		},
		{
			alert: "RlsEnvoyCallsFail", want: "2 calls a second of the Envoy a",
			sick:    []string{`envoy_cluster_ratelimit_error{envoy_cluster_name="shop", ` + target + `} 0+30x200`},
			healthy: []string{`envoy_cluster_ratelimit_error{envoy_cluster_name="shop", ` + target + `} 0+1x200`},
		},
		{
			alert: "RlsMassDenial", want: "a denies 99.01% of the calls",
			sick:    calls("0+100x152 15200+1x40", "0+1x152 152+100x40"), // limits of 0 in minute 38: the alert fires in minute 40
			healthy: calls("0+100x200", "0+1x152 152+1000x40"),           // a flood that limits deny
		},
		{
			alert: "RlsOverrideWithoutEnd", want: "2 overrides, rules or switches have no end",
			sick:    []string{"rls_overrides_without_end{" + target + "} 2x200"},
			healthy: []string{"rls_overrides_without_end{" + target + "} 2x60 0x100"}, // somebody has deleted them
		},
		{
			alert: "RlsNoCalls", want: "Nobody calls rls any more",
			sick:    []string{`rls_calls_total{code="ok", ` + target + `} 0+100x60 6000x140`},
			healthy: []string{`rls_calls_total{code="ok", ` + target + `} 0x200`}, // nobody has called yet
		},
		{
			alert: "RlsLimitsOff", want: "2 switches turn off limits of the scope rule",
			sick:    []string{`rls_limits_off{scope="rule", ` + target + `} 2x400`},
			healthy: []string{`rls_limits_off{scope="rule", ` + target + `} 2x60 0x200`}, // the switches have ended
		},
		{
			alert: "RlsConnectionsRefused", want: "a refuses connections at its listener grpc, because of the bound peer_connections",
			sick:    []string{`rls_connections_refused_total{listener="grpc", reason="peer_connections", ` + target + `} 0+1x200`},
			healthy: []string{`rls_connections_refused_total{listener="grpc", reason="frames", ` + target + `} 0+1x200`}, // an attack
		},
		{
			alert: "RlsCertificateExpires", want: "The certificate of the listener grpc of a expires in",
			sick:    []string{`rls_certificate_expiry_timestamp_seconds{listener="grpc", ` + target + `} 500000x200`},
			healthy: []string{`rls_certificate_expiry_timestamp_seconds{listener="grpc", ` + target + `} 864000x200`},
		},
		{
			alert: "RlsRedisStandsStill", want: "keeps 66.67m batches a second of a waiting",
			sick:    []string{`rls_redis_stalled_batches_total{server="main", ` + target + `} 0+1x200`},
			healthy: []string{`rls_redis_stalled_batches_total{server="main", ` + target + `} 7x200`},
		},
		{
			alert: "RlsRedisLostCounters", want: "a found that Redis has lost counters",
			sick:    []string{`rls_redis_losses_total{server="main", ` + target + `} 0+1x200`},
			healthy: []string{`rls_redis_losses_total{server="main", ` + target + `} 7x200`},
		},
		{
			alert: "RlsCallsSlow", want: "longer than",
			sick:    histogram("ratelimit_service_response_time_seconds", `grpc_method="ShouldRateLimit", `+target, 90, 100, 100),
			healthy: histogram("ratelimit_service_response_time_seconds", `grpc_method="ShouldRateLimit", `+target, 100, 100, 100),
		},
		{
			alert: "RlsRedisDown", want: "a can't use Redis",
			sick: []string{"rls_redis_up{" + target + "} 0x200"}, healthy: []string{"rls_redis_up{" + target + "} 1x200"},
		},
		{
			alert: "RlsRedisFlaps", want: "lost Redis",
			sick:    []string{`rls_redis_state_changes_total{state="down", ` + target + `} 0+1x200`},
			healthy: []string{`rls_redis_state_changes_total{state="down", ` + target + `} 0x100 1x100`},
		},
		{
			alert: "RlsRedisSlow", want: "in Redis",
			sick:    histogram("rls_redis_batch_duration_seconds", `server="main", `+target, 90, 100, 100),
			healthy: histogram("rls_redis_batch_duration_seconds", `server="main", `+target, 100, 100, 100),
		},
		{
			alert: "RlsRedisErrors", want: "errors of the kind readonly",
			sick:    []string{`rls_redis_errors_total{kind="readonly", server="main", ` + target + `} 0+15x200`},
			healthy: []string{`rls_redis_errors_total{kind="noscript", server="main", ` + target + `} 0+15x200`},
		},
		{
			alert: "RlsRedisCheckFailed", want: "1 problems of Redis in its check rights",
			sick:    []string{`rls_redis_check_problems{check="rights", server="main", ` + target + `} 1x200`},
			healthy: []string{`rls_redis_check_problems{check="rights", server="main", ` + target + `} 0x200`},
		},
		{
			alert: "RlsDecidesWithoutRedis", want: "1% of its decisions without Redis",
			sick:    append(decisions("late", 1, 100), "rls_redis_up{"+target+"} 1x200"),
			healthy: append(decisions("late", 1, 100), "rls_redis_up{"+target+"} 0x200"),
		},
		{
			alert: "RlsOverloaded", want: "no room in its queue to Redis for 1% of its decisions",
			sick: decisions("overload", 1, 100), healthy: decisions("overload", 1, 10_000),
		},
		{
			alert: "RlsOutageExpensive", want: "20k hits",
			sick:    []string{"rls_outage_max_excess_hits{" + target + "} 20000x200", "rls_redis_up{" + target + "} 0x200"},
			healthy: []string{"rls_outage_max_excess_hits{" + target + "} 20000x200", "rls_redis_up{" + target + "} 1x200"},
		},
		{
			alert: "RlsLimitsRejected", want: "2 problems",
			sick: []string{"rls_config_problems{" + target + "} 2x200"}, healthy: []string{"rls_config_problems{" + target + "} 0x200"},
		},
		{
			alert: "RlsLimitsDiffer", want: "2 different sets",
			sick:    []string{`rls_config_info{hash="1", ` + target + `} 1x200`, `rls_config_info{hash="2", job="rls", instance="b"} 1x200`},
			healthy: []string{`rls_config_info{hash="1", ` + target + `} 1x200`, `rls_config_info{hash="1", job="rls", instance="b"} 1x200`},
		},
		{
			alert: "RlsSourceDown", want: "the source xds",
			sick: []string{`rls_source_up{source="xds", ` + target + `} 0x200`}, healthy: []string{`rls_source_up{source="xds", ` + target + `} 1x200`},
		},
		{
			alert: "RlsUnknownDomain", want: "the domain shop",
			sick:    []string{`ratelimit_service_rate_limit_domain_not_found{domain="shop", ` + target + `} 0+1x200`},
			healthy: []string{`ratelimit_service_rate_limit_domain_not_found{domain="shop", ` + target + `} 7x200`},
		},
		{
			alert: "RlsRuleDeniesMost", want: "The rule shop > tenant denies 90% of its hits",
			sick:    ruleHits(100, 90, 0),
			healthy: ruleHits(100, 90, 80),
		},
		{
			alert: "RlsRuleDeniesAfterChange", want: "The rule shop > tenant denies most hits since its limits changed",
			sick:    []string{`rls_rule_denies_since_change{rule="shop > tenant", ` + target + `} 1x200`},
			healthy: []string{`rls_rule_denies_since_change{rule="shop > tenant", ` + target + `} 1x60`}, // repaired
		},
		{
			alert: "RlsCPUHigh", want: "a uses 80% of its CPU",
			sick:    []string{"process_cpu_seconds_total{" + target + "} 0+24x200", "go_sched_gomaxprocs_threads{" + target + "} 2x200"},
			healthy: []string{"process_cpu_seconds_total{" + target + "} 0+15x200", "go_sched_gomaxprocs_threads{" + target + "} 2x200"},
		},
		{
			alert: "RlsFileRejected", want: "a rejects the newest ADMIN_TOKENS_FILE or CALLER_DOMAINS_FILE",
			sick:    []string{"rls_tokens_file_valid{" + target + "} 0x200", "rls_callers_file_valid{" + target + "} 1x200"},
			healthy: []string{"rls_tokens_file_valid{" + target + "} 1x200", "rls_callers_file_valid{" + target + "} 1x200"},
		},
		{
			alert: "RlsRegionSettingsDiffer", want: "Regions have different values",
			sick:    []string{"rls_region_settings_differ{" + target + "} 1x200"},
			healthy: []string{"rls_region_settings_differ{" + target + "} 0x200"},
		},
		{
			alert: "RlsRegionCutOff", want: "a is cut off from the global Redis",
			sick:    []string{"rls_region_cut_off{" + target + "} 1x200"},
			healthy: []string{"rls_region_cut_off{" + target + "} 0x200"},
		},
		{
			alert: "RlsDecisionLogIncomplete", want: "lacks records: rate",
			sick:    []string{`rls_decision_log_dropped_total{reason="write_error", ` + target + `} 0+1x200`, `rls_decision_log_dropped_total{reason="rate", ` + target + `} 0+1x200`},
			healthy: []string{`rls_decision_log_dropped_total{reason="rate", ` + target + `} 7x200`},
		},
		{
			alert: "RlsCountersEvicted", want: "a evicts",
			sick:    []string{"rls_local_evictions_total{" + target + "} 0+15x200"},
			healthy: []string{"rls_local_evictions_total{" + target + "} 9x200"},
		},
	} {
		t.Run(test.alert, func(t *testing.T) {
			require.Contains(t, alerts, test.alert)
			firingAlerts := evaluate(t, alerts[test.alert], test.sick)
			assert.Contains(t, strings.Join(firingAlerts, "\n"), test.want)
			assert.Empty(t, evaluate(t, alerts[test.alert], test.healthy))
		})
		testedAlerts[test.alert] = true
	}
	for name := range alerts {
		assert.True(t, testedAlerts[name], "%s has no test", name)
	}
}

// histogram returns the series of a histogram: the calls in 15 seconds that take at most
// 10 ms, at most 100 ms, and all.
func histogram(name, labels string, in10ms, in100ms, all int) []string {
	seriesOf := func(le string, calls int) string {
		return fmt.Sprintf("%s_bucket{le=%q, %s} 0+%dx200", name, le, labels, calls)
	}
	return []string{seriesOf("0.01", in10ms), seriesOf("0.1", in100ms), seriesOf("+Inf", all)}
}

// calls returns the series of the admitted and of the denied calls.
func calls(admitted, denied string) []string {
	return []string{
		`rls_calls_total{code="ok", job="rls", instance="a"} ` + admitted,
		`rls_calls_total{code="over_limit", job="rls", instance="a"} ` + denied,
	}
}

// decisions returns the series of a process with these decisions in 15 seconds.
func decisions(reason string, withoutRedis, all int) []string {
	return []string{
		fmt.Sprintf(`rls_decisions_without_redis_total{reason=%q, mode="local", code="OK", job="rls", instance="a"} 0+%dx200`, reason, withoutRedis),
		fmt.Sprintf(`rls_decisions_total{source="redis", result="ok", job="rls", instance="a"} 0+%dx200`, all),
	}
}

// ruleHits returns the series of a rule with these hits in 15 seconds.
func ruleHits(total, over, shadow int) []string {
	seriesOf := func(name string, hits int) string {
		return fmt.Sprintf(`ratelimit_service_rate_limit_%s{domain="shop", rule="shop > tenant", key1="tenant", job="rls", instance="a"} 0+%dx200`, name, hits)
	}
	return []string{seriesOf("total_hits", total), seriesOf("over_limit", over), seriesOf("shadow_mode", shadow)}
}

// evaluate evaluates an alert each minute for 40 i and returns the summaries of the
// alerts that then fire. The series have a sample each 15 seconds. If an alert waits for a
// week, all times are longer.
func evaluate(t *testing.T, alert rulefmt.Rule, series []string) (summaries []string) {
	t.Helper()
	step := max(time.Minute, time.Duration(alert.For)/30).Truncate(time.Minute)
	storage := promqltest.LoadedStorage(t, "load "+(step/4).String()+"\n  "+strings.Join(series, "\n  ")+"\n")
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	query := rules.EngineQueryFunc(engine, storage)
	rule := rules.NewAlertingRule(alert.Alert, parseQuery(t, alert.Expr), time.Duration(alert.For), 0,
		labels.FromMap(alert.Labels), labels.FromMap(alert.Annotations), labels.EmptyLabels(), "", true, promslog.NewNopLogger())
	for i := range 41 {
		_, err := rule.Eval(t.Context(), 0, time.Unix(0, 0).Add(time.Duration(i)*step), query, nil, 0)
		require.NoError(t, err)
	}
	for _, a := range rule.ActiveAlerts() {
		if a.State == rules.StateFiring {
			summaries = append(summaries, a.Annotations.Get("summary"))
		}
	}
	slices.Sort(summaries)
	return summaries
}

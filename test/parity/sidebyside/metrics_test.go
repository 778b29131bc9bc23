//go:build parity

package sidebyside

import (
	"regexp"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

// localCacheKind and domainKind are kinds of counters whose names contain the rule or the
// domain in the incumbent.
const (
	localCacheKind = "over_limit_with_local_cache"
	domainKind     = "domain_not_found"
)

// counterKinds are the kinds of counters with the same name and labels in both programs.
var counterKinds = map[string]string{
	"ratelimit_service_rate_limit_total_hits":   "total_hits",
	"ratelimit_service_rate_limit_within_limit": "within_limit",
	"ratelimit_service_rate_limit_near_limit":   "near_limit",
	"ratelimit_service_rate_limit_over_limit":   "over_limit",
	"ratelimit_service_rate_limit_shadow_mode":  "shadow_mode",
	"ratelimit_service_should_rate_limit_error": "should_rate_limit_error",
	"ratelimit_service_total_requests":          "total_requests",
	"ratelimit_service_global_shadow_mode":      "global_shadow_mode",
}

// compareMetrics returns the counters of both programs under the same names. The label rule is
// dropped, so rules that the incumbent doesn't tell apart are added. Zeros are left out,
// because the incumbent doesn't export them.
func compareMetrics(t *testing.T, ours, theirs *program) (got, want map[string]float64) {
	ourMetrics, theirMetrics := ours.metrics(t), theirs.metrics(t)
	got, want = sharedCounters(ourMetrics), sharedCounters(theirMetrics)
	for _, m := range ourMetrics["ratelimit_service_rate_limit_"+localCacheKind].GetMetric() {
		labels, value := labelText(m), m.GetCounter().GetValue()
		if strings.Count(labels, ".") >= 2 {
			got["over_limit "+labels] += value // the mapping of the incumbent adds them, too
		} else {
			got[localCacheKind+" "+nameText(labels)] += value
		}
	}
	for _, m := range ourMetrics["ratelimit_service_rate_limit_"+domainKind].GetMetric() {
		got[domainKind+" "+nameText(labelText(m))] += m.GetCounter().GetValue()
	}
	addCountersByName(want, theirMetrics, localCacheKind)
	addCountersByName(want, theirMetrics, domainKind)
	for _, counters := range []map[string]float64{got, want} {
		for name, value := range counters {
			if value == 0 || name == "total_requests Check" {
				delete(counters, name)
			}
		}
	}
	return got, want
}

// sharedCounters returns the counters of counterKinds by kind and labels.
func sharedCounters(families map[string]*dto.MetricFamily) map[string]float64 {
	counters := map[string]float64{}
	for name, kind := range counterKinds {
		for _, m := range families[name].GetMetric() {
			counters[strings.TrimSpace(kind+" "+labelText(m))] += m.GetCounter().GetValue()
		}
	}
	return counters
}

// labelText returns the values of the labels of m, except rule, with dots between.
func labelText(m *dto.Metric) string {
	var texts []string
	for _, l := range m.GetLabel() {
		if l.GetName() != "rule" && l.GetValue() != "" {
			texts = append(texts, l.GetValue())
		}
	}
	return strings.Join(texts, ".")
}

// notInNames matches what the incumbent replaces by _ in the names of metrics.
var notInNames = regexp.MustCompile(`[^a-zA-Z0-9_]`)

// nameText returns labels as the incumbent writes them in the name of a metric.
func nameText(labels string) string { return notInNames.ReplaceAllString(labels, "_") }

// addCountersByName adds the counters of the incumbent whose names end with kind to counters.
func addCountersByName(counters map[string]float64, families map[string]*dto.MetricFamily, kind string) {
	for metric, f := range families {
		name, isKind := strings.CutSuffix(metric, "_"+kind)
		name, isRule := strings.CutPrefix(name, "ratelimit_service_rate_limit_")
		if isKind && isRule {
			counters[kind+" "+name] += f.GetMetric()[0].GetCounter().GetValue()
		}
	}
}

// metrics returns the metrics that the program exports now, by name.
func (p *program) metrics(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(p.get(t, "/metrics")))
	require.NoError(t, err)
	return families
}

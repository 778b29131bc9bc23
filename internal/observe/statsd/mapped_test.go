package statsd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/observe/metrics"
)

// mappedText applies a mapping to the metrics of p. It returns the metrics in the text format, without comments.
func mappedText(t *testing.T, source *process, mapping string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "mapping.yaml")
	require.NoError(t, os.WriteFile(file, []byte(mapping), 0o600))
	m, err := LoadMapping(file)
	require.NoError(t, err)
	ownFamilies, err := source.registry.Gather()
	require.NoError(t, err)
	families, err := FamilyMapper(m, source.allRules)(ownFamilies)
	require.NoError(t, err)
	var b, lines strings.Builder
	for _, family := range families {
		_, err := expfmt.MetricFamilyToText(&b, family)
		require.NoError(t, err)
	}
	for line := range strings.Lines(b.String()) {
		if !strings.HasPrefix(line, "#") {
			lines.WriteString(line)
		}
	}
	return lines.String()
}

func newMappedProcess() *process {
	testProcess := newProcess()
	testProcess.rules = []metrics.KeyCounts{
		{Key: "d.k.l.m", HitSums: metrics.HitSums{Total: 5}},
		{Key: "d.k.l.n", HitSums: metrics.HitSums{Total: 3, RefundedHits: 2}},
		{Key: "d.k", HitSums: metrics.HitSums{Total: 1}},
	}
	testProcess.counter("ratelimit_service_config_load_success").Add(2)
	testProcess.counter("rls_ours_total").Add(7)
	times := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "ratelimit_service_response_time_seconds", Buckets: []float64{.001, .01}}, []string{"grpc_method"})
	testProcess.registry.MustRegister(times)
	for range 3 {
		times.WithLabelValues("ShouldRateLimit").Observe(.0005)
	}
	times.WithLabelValues("ShouldRateLimit").Observe(.005)
	return testProcess
}

func TestMappingRenamesMetrics(t *testing.T) {
	const mapping = `
defaults: {observer_type: histogram, histogram_options: {buckets: [1, 10]}}
mappings:
- {match: ratelimit.service.rate_limit.*.*.total_hits, name: hits, labels: {domain: $1, key: $2}}
- match: ratelimit\.service\.rate_limit\.([^.]*)\.([^.]*)\..*\.total_hits
  match_type: regex
  name: hits
  labels: {domain: $1, key: $2, depth: several}
- {match: ratelimit.service.config_load_success, action: drop, name: dropped}
- {match: ratelimit_server.*.response_time, name: times_$1, scale: 2}
`
	out := mappedText(t, newMappedProcess(), mapping)
	for _, want := range []string{
		`hits{domain="d",key="k"} 1`,
		`hits{depth="several",domain="d",key="k"} 8`, // the rules have the same labels after the mapping
		`ratelimit_service_rate_limit_d_k_l_n_total_negative_hits 2`,
		"rls_ours_total 7",
		`times_ShouldRateLimit_bucket{le="1"} 3`, // the middle of the bucket is half a millisecond
		`times_ShouldRateLimit_bucket{le="10"} 3`,
		`times_ShouldRateLimit_bucket{le="+Inf"} 4`,
		`times_ShouldRateLimit_sum 14`,
	} {
		assert.Contains(t, out, want+"\n")
	}
	assert.NotContains(t, out, "config_load_success")
	assert.NotContains(t, out, "response_time_seconds")
}

func TestTimersBecomeSummariesByDefault(t *testing.T) {
	out := mappedText(t, newMappedProcess(), "mappings: [{match: x, name: y}]")
	assert.Contains(t, out, "ratelimit_server_ShouldRateLimit_response_time{quantile=\"0.5\"} 0.5\n")
	assert.Contains(t, out, "ratelimit_server_ShouldRateLimit_response_time{quantile=\"0.99\"} 5.5\n")
	assert.Contains(t, out, "ratelimit_service_config_load_success 2\n", "unmapped names stay, with an underscore for each dot")
}

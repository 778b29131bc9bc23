package deploy

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/observe/metrics"
)

// exportedMetrics returns the labels of each metric that rls exports. Tests of the program
// hold docs/metrics.md to the program.
func exportedMetrics(t *testing.T) map[string][]string {
	t.Helper()
	exportedLabels := map[string][]string{
		"up":                            nil, // Prometheus makes it for each target
		"envoy_cluster_ratelimit_error": nil, // of Envoy
	}
	row := regexp.MustCompile("(?m)^\\| `((?:rls|ratelimit)_\\w+)(?:\\{([\\w,]+)\\})?` \\| (counter|gauge|histogram) \\|")
	for _, m := range row.FindAllStringSubmatch(readFile(t, "docs/metrics.md"), -1) {
		names, metricLabels := []string{m[1]}, strings.Split(m[2], ",")
		if m[3] == "histogram" {
			names = []string{m[1] + "_bucket", m[1] + "_sum", m[1] + "_count"}
			metricLabels = append(metricLabels, "le")
		}
		for _, name := range names {
			exportedLabels[name] = metricLabels
		}
	}
	require.Greater(t, len(exportedLabels), 40, "docs/metrics.md has another form")
	families, err := metrics.New().Gather() // the Go runtime and the process
	require.NoError(t, err)
	for _, family := range families {
		exportedLabels[family.GetName()] = nil
	}
	return exportedLabels
}

// targetLabels are the labels that Prometheus adds to each metric. Only a Prometheus with several clusters has cluster.
var targetLabels = []string{"cluster", "job", "instance"}

// parseQuery parses a query of PromQL.
func parseQuery(t *testing.T, query string) parser.Expr {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	require.NoError(t, err, query)
	return expr
}

// assertExported checks that rls exports the metrics of a query with the labels that the
// query uses.
func assertExported(t *testing.T, exportedLabels map[string][]string, query string) {
	t.Helper()
	expr := parseQuery(t, query)
	selectors := 0
	usableLabels := slices.Clone(targetLabels) // of any metric in the query
	var groupedLabels []string
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			selectors++
			metricLabels, found := exportedLabels[n.Name]
			assert.True(t, found, "rls does not export %s, which is in %s", n.Name, query)
			usableLabels = append(usableLabels, metricLabels...)
			for _, m := range n.LabelMatchers {
				known := m.Name == model.MetricNameLabel || slices.Contains(targetLabels, m.Name) || slices.Contains(metricLabels, m.Name)
				assert.True(t, known, "%s has no label %s, which is in %s", n.Name, m.Name, query)
			}
		case *parser.AggregateExpr:
			groupedLabels = append(groupedLabels, n.Grouping...)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				groupedLabels = append(groupedLabels, n.VectorMatching.MatchingLabels...)
			}
		}
		return nil
	})
	assert.NotZero(t, selectors, query)
	for _, label := range groupedLabels {
		assert.Contains(t, usableLabels, label, "no metric of %s has the label %s", query, label)
	}
}

func TestQueriesOfMissingMetricsAreFound(t *testing.T) {
	for query, want := range map[string]bool{
		`sum by (rule) (rate(ratelimit_service_rate_limit_over_limit{domain="d"}[5m]))`: true,
		`sum by (rule) (rate(rls_missing_total[5m]))`:                                   false,
		`rls_redis_up{rule="x"}`:                                                        false,
		`sum by (rule) (rls_redis_up)`:                                                  false,
		`rls_redis_up and on (rule) rls_redis_up`:                                       false,
		`rate(rls_redis_batch_hits[5m])`:                                                false,
		`rate(rls_redis_batch_hits_count[5m])`:                                          true,
		`go_goroutines{instance=~".*"}`:                                                 true,
		`rls_redis_up{server="main"}`:                                                   false,
		`sum by (server, le) (rls_redis_batch_hits_bucket)`:                             true,
	} {
		probe := new(testing.T)
		assertExported(probe, exportedMetrics(t), query)
		assert.Equal(t, want, !probe.Failed(), query)
	}
}

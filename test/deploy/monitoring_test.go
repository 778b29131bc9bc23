package deploy

import (
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

func TestServiceMonitorFindsMetricsOfAllPods(t *testing.T) {
	m := template(t, shopFile+"\nserviceMonitor: {enabled: true, interval: 30s, labels: {release: prometheus}}")
	require.NotNil(t, m.metrics)
	require.NotNil(t, m.serviceMonitor)
	assert.Equal(t, "metrics", m.metrics.Spec.Ports[0].TargetPort.StrVal)
	assert.Equal(t, "prometheus", m.serviceMonitor.Labels["release"])
	assert.Subset(t, m.metrics.Labels, m.serviceMonitor.Spec.Selector.MatchLabels)
	assert.NotSubset(t, m.service.Labels, m.serviceMonitor.Spec.Selector.MatchLabels, "the main service must not be scraped too")
	require.Len(t, m.serviceMonitor.Spec.Endpoints, 1)
	endpoint := m.serviceMonitor.Spec.Endpoints[0]
	assert.Equal(t, m.metrics.Spec.Ports[0].Name, endpoint.Port)
	assert.Equal(t, "/metrics", endpoint.Path)
	assert.EqualValues(t, "30s", endpoint.Interval)
	assertJob(t, endpoint.RelabelConfigs)
}

func TestPodMonitorFindsAllPods(t *testing.T) {
	m := template(t, shopFile+"\npodMonitor: {enabled: true, metricRelabelings: [{action: labeldrop, regex: key1}]}")
	assert.Nil(t, m.metrics)
	require.NotNil(t, m.podMonitor)
	assert.Equal(t, m.deployment.Spec.Selector.MatchLabels, m.podMonitor.Spec.Selector.MatchLabels)
	require.Len(t, m.podMonitor.Spec.PodMetricsEndpoints, 1)
	endpoint := m.podMonitor.Spec.PodMetricsEndpoints[0]
	assert.Equal(t, "metrics", *endpoint.Port)
	assert.EqualValues(t, "15s", endpoint.Interval)
	assert.Equal(t, "key1", endpoint.MetricRelabelConfigs[0].Regex)
	assertJob(t, endpoint.RelabelConfigs)
}

// assertJob checks that the alerts and the dashboard find the job.
func assertJob(t *testing.T, relabelings []monitoringv1.RelabelConfig) {
	t.Helper()
	require.NotEmpty(t, relabelings)
	assert.Equal(t, "job", relabelings[0].TargetLabel)
	assert.Equal(t, "rls/limits/shop-rls", *relabelings[0].Replacement)
}

func TestPrometheusRuleHasAlertsOfDeployFolder(t *testing.T) {
	m := template(t, shopFile+"\nprometheusRule: {enabled: true, labels: {release: prometheus}}")
	require.NotNil(t, m.alerts)
	assert.Equal(t, "prometheus", m.alerts.Labels["release"])
	assert.Equal(t, readAlerts(t), alertsOf(t, m.alerts))

	m = template(t, shopFile+"\nprometheusRule: {enabled: true, without: [RlsRedisDown, RlsRedisSlow]}")
	alerts := alertsOf(t, m.alerts)
	assert.Len(t, alerts, len(readAlerts(t))-2)
	assert.NotContains(t, alerts, "RlsRedisDown")

	const wikiPage = "https://wiki.example/rls/monitoring"
	m = template(t, shopFile+"\nprometheusRule: {enabled: true, runbookPage: "+wikiPage+"}")
	assert.Equal(t, wikiPage+"#rlsredisdown", alertsOf(t, m.alerts)["RlsRedisDown"].Annotations["runbook_url"])
}

// alertsOf returns the alerts of a PrometheusRule as Prometheus reads them.
func alertsOf(t *testing.T, rule *monitoringv1.PrometheusRule) map[string]rulefmt.Rule {
	t.Helper()
	var groups rulefmt.RuleGroups
	for _, g := range rule.Spec.Groups {
		group := rulefmt.RuleGroup{Name: g.Name}
		for _, r := range g.Rules {
			parsed := rulefmt.Rule{Alert: r.Alert, Expr: r.Expr.StrVal, Labels: r.Labels, Annotations: r.Annotations}
			if r.For != nil {
				wait, err := model.ParseDuration(string(*r.For))
				require.NoError(t, err)
				parsed.For = wait
			}
			group.Rules = append(group.Rules, parsed)
		}
		groups.Groups = append(groups.Groups, group)
	}
	text, err := yaml.Marshal(groups)
	require.NoError(t, err)
	_, errs := rulefmt.Parse(text, false, model.UTF8Validation, parser.NewParser(parser.Options{}))
	require.Empty(t, errs)
	alerts := map[string]rulefmt.Rule{}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			alerts[r.Alert] = r
		}
	}
	return alerts
}

func TestDashboardConfigMapHasDashboardOfDeployFolder(t *testing.T) {
	m := template(t, shopFile+"\ngrafanaDashboard: {enabled: true, annotations: {grafana_folder: Envoy}}")
	require.NotNil(t, m.dashboard)
	assert.Equal(t, "1", m.dashboard.Labels["grafana_dashboard"])
	assert.Equal(t, "Envoy", m.dashboard.Annotations["grafana_folder"])
	assert.JSONEq(t, read(t, "deploy/grafana/rls.json"), m.dashboard.Data["rls.json"])
}

// TestChartHasCopiesOfDeployFolder compares the files of the chart with their sources. `make docs`
// copies them.
func TestChartHasCopiesOfDeployFolder(t *testing.T) {
	for file, source := range map[string]string{"alerts.yaml": "deploy/prometheus/alerts.yaml", "dashboard.json": "deploy/grafana/rls.json", "limits-schema.json": "docs/schema/limits.json"} {
		assert.True(t, read(t, source) == read(t, chartFolder+"/files/"+file), "run make docs: %s of the chart is no copy of %s", file, source)
	}
	assert.Equal(t, settingNames(t), strings.Fields(read(t, chartFolder+"/files/settings.txt")), "run make docs: settings.txt differs from docs/settings.md")
}

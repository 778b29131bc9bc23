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
	manifests := renderManifests(t, shopFile+"\nserviceMonitor: {enabled: true, interval: 30s, labels: {release: prometheus}}")
	require.NotNil(t, manifests.metrics)
	require.NotNil(t, manifests.serviceMonitor)
	assert.Equal(t, "metrics", manifests.metrics.Spec.Ports[0].TargetPort.StrVal)
	assert.Equal(t, "prometheus", manifests.serviceMonitor.Labels["release"])
	assert.Subset(t, manifests.metrics.Labels, manifests.serviceMonitor.Spec.Selector.MatchLabels)
	assert.NotSubset(t, manifests.service.Labels, manifests.serviceMonitor.Spec.Selector.MatchLabels, "the main service must not be scraped too")
	require.Len(t, manifests.serviceMonitor.Spec.Endpoints, 1)
	endpoint := manifests.serviceMonitor.Spec.Endpoints[0]
	assert.Equal(t, manifests.metrics.Spec.Ports[0].Name, endpoint.Port)
	assert.Equal(t, "/metrics", endpoint.Path)
	assert.EqualValues(t, "30s", endpoint.Interval)
	assertJob(t, endpoint.RelabelConfigs)
}

func TestPodMonitorFindsAllPods(t *testing.T) {
	manifests := renderManifests(t, shopFile+"\npodMonitor: {enabled: true, metricRelabelings: [{action: labeldrop, regex: key1}]}")
	assert.Nil(t, manifests.metrics)
	require.NotNil(t, manifests.podMonitor)
	assert.Equal(t, manifests.deployment.Spec.Selector.MatchLabels, manifests.podMonitor.Spec.Selector.MatchLabels)
	require.Len(t, manifests.podMonitor.Spec.PodMetricsEndpoints, 1)
	endpoint := manifests.podMonitor.Spec.PodMetricsEndpoints[0]
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
	manifests := renderManifests(t, shopFile+"\nprometheusRule: {enabled: true, labels: {release: prometheus}}")
	require.NotNil(t, manifests.alerts)
	assert.Equal(t, "prometheus", manifests.alerts.Labels["release"])
	assert.Equal(t, readAlerts(t), alertsOf(t, manifests.alerts))

	manifests = renderManifests(t, shopFile+"\nprometheusRule: {enabled: true, without: [RlsRedisDown, RlsRedisSlow]}")
	alerts := alertsOf(t, manifests.alerts)
	assert.Len(t, alerts, len(readAlerts(t))-2)
	assert.NotContains(t, alerts, "RlsRedisDown")

	manifests = renderManifests(t, shopFile+"\nprometheusRule: {enabled: true, changes: {RlsCallsSlow: {for: 3m, labels: {severity: critical}}}}")
	alerts = alertsOf(t, manifests.alerts)
	assert.Len(t, alerts, len(readAlerts(t)))
	assert.Equal(t, "3m", alerts["RlsCallsSlow"].For.String())
	assert.Equal(t, "critical", alerts["RlsCallsSlow"].Labels["severity"])
	assert.Equal(t, readAlerts(t)["RlsCallsSlow"].Expr, alerts["RlsCallsSlow"].Expr)

	const wikiPage = "https://wiki.example/rls/monitoring"
	manifests = renderManifests(t, shopFile+"\nprometheusRule: {enabled: true, runbookPage: "+wikiPage+"}")
	assert.Equal(t, wikiPage+"#rlsredisdown", alertsOf(t, manifests.alerts)["RlsRedisDown"].Annotations["runbook_url"])
}

// alertsOf returns the alerts of a PrometheusRule as Prometheus reads them.
func alertsOf(t *testing.T, rule *monitoringv1.PrometheusRule) map[string]rulefmt.Rule {
	t.Helper()
	var groups rulefmt.RuleGroups
	for _, g := range rule.Spec.Groups {
		group := rulefmt.RuleGroup{Name: g.Name}
		for _, rule := range g.Rules {
			parsedRule := rulefmt.Rule{Alert: rule.Alert, Expr: rule.Expr.StrVal, Labels: rule.Labels, Annotations: rule.Annotations}
			if rule.For != nil {
				wait, err := model.ParseDuration(string(*rule.For))
				require.NoError(t, err)
				parsedRule.For = wait
			}
			group.Rules = append(group.Rules, parsedRule)
		}
		groups.Groups = append(groups.Groups, group)
	}
	text, err := yaml.Marshal(groups)
	require.NoError(t, err)
	_, errs := rulefmt.Parse(text, false, model.UTF8Validation, parser.NewParser(parser.Options{}))
	require.Empty(t, errs)
	alerts := map[string]rulefmt.Rule{}
	for _, g := range groups.Groups {
		for _, rule := range g.Rules {
			alerts[rule.Alert] = rule
		}
	}
	return alerts
}

func TestDashboardConfigMapHasDashboardOfDeployFolder(t *testing.T) {
	manifests := renderManifests(t, shopFile+"\ngrafanaDashboard: {enabled: true, annotations: {grafana_folder: Envoy}}")
	require.NotNil(t, manifests.dashboard)
	assert.Equal(t, "1", manifests.dashboard.Labels["grafana_dashboard"])
	assert.Equal(t, "Envoy", manifests.dashboard.Annotations["grafana_folder"])
	assert.JSONEq(t, readFile(t, "deploy/grafana/rls.json"), manifests.dashboard.Data["rls.json"])
}

// TestChartHasCopiesOfDeployFolder compares the files of the chart with their sources. `make docs`
// copies them.
func TestChartHasCopiesOfDeployFolder(t *testing.T) {
	for file, source := range map[string]string{"alerts.yaml": "deploy/prometheus/alerts.yaml", "dashboard.json": "deploy/grafana/rls.json", "limits-schema.json": "docs/schema/limits.json"} {
		assert.True(t, readFile(t, source) == readFile(t, chartFolder+"/files/"+file), "run make docs: %s of the chart is no copy of %s", file, source)
	}
	assert.Equal(t, settingNames(t), strings.Fields(readFile(t, chartFolder+"/files/settings.txt")), "run make docs: settings.txt differs from docs/settings.md")
}

package deploy

import (
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
)

const chart = "deploy/helm/rls"

// manifests holds the rendered objects of the chart by kind.
type manifests struct {
	deployment appsv1.Deployment
	service    corev1.Service
	limits     corev1.ConfigMap
	pdb        *policyv1.PodDisruptionBudget
	hpa        *autoscalingv2.HorizontalPodAutoscaler
	metrics    *corev1.Service
	monitor    *monitoringv1.ServiceMonitor
}

// template renders the chart with values in YAML, as helm template does, and checks every
// object.
func template(t *testing.T, values string) manifests {
	t.Helper()
	manifest, err := render(t, "shop", values)
	require.NoError(t, err)
	var m manifests
	for _, o := range objects(t, manifest) {
		switch o.Kind {
		case "Deployment":
			o.decode(t, &m.deployment)
		case "Service":
			var service corev1.Service
			o.decode(t, &service)
			if strings.HasSuffix(service.Name, "-metrics") {
				m.metrics = &service
			} else {
				m.service = service
			}
		case "ServiceMonitor":
			o.decode(t, &m.monitor)
		case "ConfigMap":
			o.decode(t, &m.limits)
		case "PodDisruptionBudget":
			o.decode(t, &m.pdb)
		case "HorizontalPodAutoscaler":
			o.decode(t, &m.hpa)
		default:
			require.Fail(t, "unexpected kind "+o.Kind)
		}
	}
	for _, text := range m.limits.Data {
		compile(t, text)
	}
	m.checkReferences(t)
	return m
}

// render renders the chart for a release of the given name.
func render(t *testing.T, name, values string) (manifest string, err error) {
	t.Helper()
	c, err := loader.Load(path(chart))
	require.NoError(t, err)
	v, err := chartutil.ReadValues([]byte(values))
	require.NoError(t, err)
	i := action.NewInstall(new(action.Configuration))
	i.DryRun, i.ClientOnly, i.ReleaseName, i.Namespace = true, true, name, "limits"
	i.KubeVersion = &chartutil.KubeVersion{Version: "v1.33.0", Major: "1", Minor: "33"}
	release, err := i.Run(c, v)
	if err != nil {
		return "", err
	}
	return release.Manifest, nil
}

// checkReferences checks labels, volumes, ports, settings and paths that name each other.
func (m manifests) checkReferences(t *testing.T) {
	t.Helper()
	pod := m.deployment.Spec.Template
	for name, value := range m.service.Spec.Selector {
		assert.Equal(t, value, pod.Labels[name])
	}
	assert.Equal(t, m.service.Spec.Selector, m.deployment.Spec.Selector.MatchLabels)
	volumes := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = true
		if v.ConfigMap != nil {
			assert.Equal(t, m.limits.Name, v.ConfigMap.Name)
		}
	}
	c := pod.Spec.Containers[0]
	ports := map[string]int32{}
	for _, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
	}
	assert.Equal(t, map[string]int32{"grpc": 8081, "http": 8080, "debug": 6070, "metrics": 9090}, ports)
	for _, p := range m.service.Spec.Ports {
		assert.Contains(t, ports, p.TargetPort.StrVal)
	}
	for _, p := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe} {
		require.NotNil(t, p)
		assert.Equal(t, "/healthcheck", p.HTTPGet.Path)
		assert.Contains(t, ports, p.HTTPGet.Port.StrVal)
	}
	require.NotNil(t, c.LivenessProbe)
	var mountPaths []string
	for _, mount := range c.VolumeMounts {
		assert.True(t, volumes[mount.Name], mount.Name)
		mountPaths = append(mountPaths, mount.MountPath)
	}
	assert.Len(t, c.VolumeMounts, len(volumes))
	for _, e := range c.Env {
		assertSetting(t, e.Name)
		if strings.HasPrefix(e.Value, "/") {
			assert.True(t, isBelow(e.Value, mountPaths), "%s is below a mount path", e.Value)
		}
	}
}

func isBelow(file string, folders []string) bool {
	for _, folder := range folders {
		if file == folder || strings.HasPrefix(file, folder+"/") {
			return true
		}
	}
	return false
}

// env returns the settings of the container. A value from a secret is "secret NAME".
func (m manifests) env() map[string]string {
	env := map[string]string{}
	for _, e := range m.deployment.Spec.Template.Spec.Containers[0].Env {
		env[e.Name] = e.Value
		if e.ValueFrom != nil {
			env[e.Name] = "secret " + e.ValueFrom.SecretKeyRef.Name
		}
	}
	return env
}

func TestChartPassesLint(t *testing.T) {
	c, err := loader.Load(path(chart))
	require.NoError(t, err)
	for _, message := range lint.AllWithKubeVersion(path(chart), c.Values, "limits", nil).Messages {
		if message.Severity > support.InfoSev {
			assert.NoError(t, message.Err)
		}
	}
}

// shopFile is the minimum of values that the chart accepts.
const shopFile = `limits: {shop.yaml: "domain: shop"}`

func TestChartDefaults(t *testing.T) {
	m := template(t, shopFile)
	assert.Equal(t, "shop-rls", m.deployment.Name)
	assert.EqualValues(t, 2, *m.deployment.Spec.Replicas)
	assert.Equal(t, map[string]string{"LIMITS_PATH": "/limits", "DRAIN_DELAY": "5s", "USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": ":9090"}, m.env())
	assert.Equal(t, map[string]string{"shop.yaml": "domain: shop"}, m.limits.Data, "only the given limits")
	assert.Equal(t, "None", m.service.Spec.ClusterIP)
	require.NotNil(t, m.pdb)
	assert.Equal(t, m.service.Spec.Selector, m.pdb.Spec.Selector.MatchLabels)
	assert.Nil(t, m.hpa)

	pod := m.deployment.Spec.Template.Spec
	assert.True(t, *pod.SecurityContext.RunAsNonRoot)
	assert.EqualValues(t, 65532, *pod.SecurityContext.RunAsUser)
	assert.False(t, *pod.AutomountServiceAccountToken)
	container := pod.Containers[0].SecurityContext
	assert.True(t, *container.ReadOnlyRootFilesystem)
	assert.False(t, *container.AllowPrivilegeEscalation)
	assert.Equal(t, []corev1.Capability{"ALL"}, container.Capabilities.Drop)
}

func TestChartWithAllValues(t *testing.T) {
	m := template(t, shopFile+`
redis:
  url: redis.example:6379
  type: cluster
  authSecret: redis-password
  tls: {enabled: true, secret: redis-tls, clientCert: true}
overrides: true
admin: {tokenSecret: admin-token}
tls: {secret: grpc-tls, clientAuth: true, clientSAN: envoy.example}
env: {LIMIT_RESPONSE_HEADERS_ENABLED: true, LOCAL_MAX_KEYS: 2000000, REDIS_FALLBACK_RATIO: 0.25, CACHE_KEY_PREFIX: "1e6"}
autoscaling: {enabled: true, maxReplicas: 5}
resources: {limits: {memory: 2Gi}}
nodeSelector: {disk: fast}
tolerations: [{key: edge, operator: Exists}]
podAnnotations: {team: edge}
`)
	assert.Equal(t, map[string]string{
		"LIMITS_PATH": "/limits", "DRAIN_DELAY": "5s", "USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": ":9090",
		"REDIS_URL": "redis.example:6379", "REDIS_TYPE": "cluster", "REDIS_TIMEOUT": "50ms",
		"REDIS_AUTH": "secret redis-password", "REDIS_TLS": "true", "REDIS_TLS_CACERT": "/certs/redis/ca.crt",
		"REDIS_TLS_CLIENT_CERT": "/certs/redis/tls.crt", "REDIS_TLS_CLIENT_KEY": "/certs/redis/tls.key",
		"OVERRIDES_ENABLED": "true", "ADMIN_TOKEN": "secret admin-token",
		"GRPC_SERVER_USE_TLS": "true", "GRPC_SERVER_TLS_CERT": "/certs/grpc/tls.crt", "GRPC_SERVER_TLS_KEY": "/certs/grpc/tls.key",
		"GRPC_CLIENT_TLS_CACERT": "/certs/grpc/ca.crt", "GRPC_CLIENT_TLS_SAN": "envoy.example",
		"LIMIT_RESPONSE_HEADERS_ENABLED": "true", "LOCAL_MAX_KEYS": "2000000", "REDIS_FALLBACK_RATIO": "0.25", "CACHE_KEY_PREFIX": "1e6",
	}, m.env())
	assert.Nil(t, m.deployment.Spec.Replicas, "the autoscaler sets the number")
	require.NotNil(t, m.hpa)
	assert.EqualValues(t, 5, m.hpa.Spec.MaxReplicas)
	assert.Equal(t, m.deployment.Name, m.hpa.Spec.ScaleTargetRef.Name)
	assert.Equal(t, map[string]string{"disk": "fast"}, m.deployment.Spec.Template.Spec.NodeSelector)
}

func TestServiceMonitorFindsTheMetricsOfAllPods(t *testing.T) {
	m := template(t, shopFile)
	assert.Nil(t, m.metrics)
	assert.Nil(t, m.monitor)

	m = template(t, shopFile+"\nserviceMonitor: {enabled: true, interval: 30s, labels: {release: prometheus}}")
	require.NotNil(t, m.metrics)
	require.NotNil(t, m.monitor)
	assert.Equal(t, m.service.Spec.Selector, m.metrics.Spec.Selector)
	assert.Equal(t, "metrics", m.metrics.Spec.Ports[0].TargetPort.StrVal)
	assert.Equal(t, map[string]string{"LIMITS_PATH": "/limits", "DRAIN_DELAY": "5s", "USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": ":9090"}, m.env())

	assert.Equal(t, "prometheus", m.monitor.Labels["release"])
	for name, value := range m.monitor.Spec.Selector.MatchLabels {
		assert.Equal(t, value, m.metrics.Labels[name], name)
	}
	assert.NotEqual(t, m.monitor.Spec.Selector.MatchLabels["app.kubernetes.io/component"], m.service.Labels["app.kubernetes.io/component"],
		"the main service must not be scraped too")
	require.Len(t, m.monitor.Spec.Endpoints, 1)
	endpoint := m.monitor.Spec.Endpoints[0]
	assert.Equal(t, m.metrics.Spec.Ports[0].Name, endpoint.Port)
	assert.Equal(t, "/metrics", endpoint.Path)
	assert.EqualValues(t, "30s", endpoint.Interval)
}

func TestChartWithXDSNeedsNoLimits(t *testing.T) {
	m := template(t, "env: {CONFIG_TYPE: GRPC_XDS_SOTW, CONFIG_GRPC_XDS_SERVER_URL: control-plane:18000}")
	assert.Empty(t, m.limits.Name)
	assert.Equal(t, map[string]string{
		"DRAIN_DELAY": "5s", "USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": ":9090", "CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL": "control-plane:18000",
	}, m.env())
}

func TestChartRejectsValuesThatStopThePods(t *testing.T) {
	for values, want := range map[string]string{
		"":                             "no limits: set limits",
		"limits: {}":                   "no limits: set limits",
		"env: {CONFIG_TYPE: FILE}":     "no limits: set limits",
		shopFile + "\noverrides: true": "want redis.url",
	} {
		_, err := render(t, "shop", values)
		assert.ErrorContains(t, err, want, values)
	}
	template(t, shopFile+"\noverrides: true\nenv: {REDIS_URL: redis.example:6379}")
}

func TestDisruptionBudgetNeedsTwoReplicas(t *testing.T) {
	for values, want := range map[string]bool{
		"replicas: 1": false,
		"replicas: 2": true,
		"autoscaling: {enabled: true, minReplicas: 1}":              false,
		"replicas: 1\nautoscaling: {enabled: true}":                 true,
		"replicas: 3\npodDisruptionBudget: {enabled: false}":        false,
		"replicas: 3\npodDisruptionBudget: {minAvailable: \"50%\"}": true,
	} {
		assert.Equal(t, want, template(t, values+"\n"+shopFile).pdb != nil, values)
	}
}

func TestServiceNameFollowsReleaseName(t *testing.T) {
	for release, want := range map[string]string{"rls": "rls", "rls-eu": "rls-eu", "shop": "shop-rls"} {
		manifest, err := render(t, release, shopFile)
		require.NoError(t, err)
		for _, o := range objects(t, manifest) {
			if o.Kind == "Service" {
				assert.Equal(t, want, o.fields["metadata"].(map[string]any)["name"])
			}
		}
	}
}

func TestChartAcceptsValuesOfExamples(t *testing.T) {
	for file, domain := range map[string]string{"examples/istio/limits.yaml": "mesh", "examples/contour/limits.yaml": "contour"} {
		m := template(t, read(t, file))
		domains := compile(t, m.limits.Data["limits.yaml"]).Domains()
		require.Len(t, domains, 1)
		assert.Equal(t, domain, domains[0].Name)
	}
}

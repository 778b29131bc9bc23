package deploy

import (
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/action"
	helmchart "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/release"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
)

const chartFolder = "deploy/helm/rls"

// manifests holds the rendered objects of the chart.
type manifests struct {
	deployment     appsv1.Deployment
	service        corev1.Service
	configMaps     map[string]map[string]string // data by name
	serviceAccount *corev1.ServiceAccount
	pdb            *policyv1.PodDisruptionBudget
	hpa            *autoscalingv2.HorizontalPodAutoscaler
	network        *networkingv1.NetworkPolicy
	metrics        *corev1.Service
	serviceMonitor *monitoringv1.ServiceMonitor
	podMonitor     *monitoringv1.PodMonitor
	alerts         *monitoringv1.PrometheusRule
	dashboard      *corev1.ConfigMap
	test           *corev1.Pod
	notes          string
}

// renderManifests renders the chart with values in YAML, as helm template does, and checks every
// object.
func renderManifests(t *testing.T, values string) manifests {
	t.Helper()
	r, err := render(t, "shop", values)
	require.NoError(t, err)
	rendered := readManifests(t, fullManifest(r))
	rendered.notes = r.Info.Notes
	rendered.checkReferences(t)
	return rendered
}

func loadChart(t *testing.T) *helmchart.Chart {
	t.Helper()
	c, err := loader.Load(path(chartFolder))
	require.NoError(t, err)
	return c
}

// render renders the chart for a release of the given name.
func render(t *testing.T, name, values string) (*release.Release, error) {
	t.Helper()
	v, err := chartutil.ReadValues([]byte(values))
	require.NoError(t, err)
	i := action.NewInstall(new(action.Configuration))
	i.DryRun, i.ClientOnly, i.ReleaseName, i.Namespace = true, true, name, "limits"
	i.KubeVersion = &chartutil.KubeVersion{Version: "v1.33.0", Major: "1", Minor: "33"}
	return i.Run(loadChart(t), v)
}

// fullManifest returns all objects of a release, with those of helm test.
func fullManifest(r *release.Release) string {
	text := r.Manifest
	for _, hook := range r.Hooks {
		text += "---\n# Source: " + hook.Path + "\n" + hook.Manifest + "\n"
	}
	return text
}

// readManifests decodes all objects. Unknown fields fail the test.
func readManifests(t *testing.T, text string) manifests {
	t.Helper()
	rendered := manifests{configMaps: map[string]map[string]string{}}
	targets := map[string]any{ // of objects that a release has at most once
		"apps/v1 Deployment":                      &rendered.deployment,
		"v1 ServiceAccount":                       &rendered.serviceAccount,
		"v1 Pod":                                  &rendered.test,
		"policy/v1 PodDisruptionBudget":           &rendered.pdb,
		"autoscaling/v2 HorizontalPodAutoscaler":  &rendered.hpa,
		"networking.k8s.io/v1 NetworkPolicy":      &rendered.network,
		"monitoring.coreos.com/v1 ServiceMonitor": &rendered.serviceMonitor,
		"monitoring.coreos.com/v1 PodMonitor":     &rendered.podMonitor,
		"monitoring.coreos.com/v1 PrometheusRule": &rendered.alerts,
	}
	for _, object := range objects(t, text) {
		switch kind := object.APIVersion + " " + object.Kind; kind {
		case "v1 Service":
			var service corev1.Service
			object.decode(t, &service)
			if strings.HasSuffix(service.Name, "-metrics") {
				rendered.metrics = &service
			} else {
				rendered.service = service
			}
		case "v1 ConfigMap":
			var c corev1.ConfigMap
			object.decode(t, &c)
			if strings.HasSuffix(c.Name, "-dashboard") {
				rendered.dashboard = &c
			} else {
				rendered.configMaps[c.Name] = c.Data
			}
		default:
			require.Contains(t, targets, kind, "unexpected or second object")
			object.decode(t, targets[kind])
			delete(targets, kind)
		}
	}
	return rendered
}

// limits returns the limits files of the deployment.
func (m manifests) limits() map[string]string {
	for _, v := range m.deployment.Spec.Template.Spec.Volumes {
		if v.Name == "limits" && v.ConfigMap != nil {
			return m.configMaps[v.ConfigMap.Name]
		}
	}
	return nil
}

// checkReferences checks limits, labels, volumes, ports, settings and paths that name each other.
func (m manifests) checkReferences(t *testing.T) {
	t.Helper()
	for _, text := range m.limits() {
		compile(t, text)
	}
	pod := m.deployment.Spec.Template
	selector := m.deployment.Spec.Selector.MatchLabels
	assert.Subset(t, pod.Labels, selector)
	for _, podSelector := range m.podSelectors() {
		assert.Equal(t, selector, podSelector)
	}
	for _, c := range pod.Spec.TopologySpreadConstraints {
		require.NotNil(t, c.LabelSelector)
		assert.Subset(t, pod.Labels, c.LabelSelector.MatchLabels)
	}
	if m.serviceAccount != nil {
		assert.Equal(t, m.serviceAccount.Name, pod.Spec.ServiceAccountName)
	}
	container := pod.Spec.Containers[0]
	ports := map[string]int32{}
	for _, p := range container.Ports {
		ports[p.Name] = p.ContainerPort
	}
	assert.Equal(t, map[string]int32{"grpc": 8081, "http": 8080, "debug": 6070, "metrics": 9090}, ports)
	for _, p := range m.service.Spec.Ports {
		assert.Contains(t, ports, p.TargetPort.StrVal)
	}
	require.NotNil(t, container.StartupProbe)
	require.NotNil(t, container.LivenessProbe)
	require.NotNil(t, container.ReadinessProbe)
	assert.Equal(t, "/healthcheck", container.ReadinessProbe.HTTPGet.Path)
	assert.Contains(t, ports, container.ReadinessProbe.HTTPGet.Port.StrVal)

	checkContainers(t, pod.Spec)
	if m.test != nil {
		checkContainers(t, m.test.Spec)
		assert.NotEqual(t, selector["app.kubernetes.io/name"], m.test.Labels["app.kubernetes.io/name"], "the test is no pod of the service")
	}
}

// podSelectors returns the labels by which the services and the policies select the pods.
func (m manifests) podSelectors() []map[string]string {
	selectors := []map[string]string{m.service.Spec.Selector}
	if m.metrics != nil {
		selectors = append(selectors, m.metrics.Spec.Selector)
	}
	if m.pdb != nil {
		selectors = append(selectors, m.pdb.Spec.Selector.MatchLabels)
	}
	if m.network != nil {
		selectors = append(selectors, m.network.Spec.PodSelector.MatchLabels)
	}
	return selectors
}

// checkContainers checks the settings and the mounts of the containers that run rls.
func checkContainers(t *testing.T, pod corev1.PodSpec) {
	t.Helper()
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		assert.False(t, volumes[v.Name], "two volumes have the name %s", v.Name)
		volumes[v.Name] = true
	}
	for _, container := range pod.Containers {
		if container.Name != "rls" && container.Name != "doctor" && container.Name != "call" {
			continue
		}
		var mountPaths []string
		for _, mount := range container.VolumeMounts {
			assert.True(t, volumes[mount.Name], mount.Name)
			mountPaths = append(mountPaths, mount.MountPath)
		}
		assert.GreaterOrEqual(t, len(container.VolumeMounts), len(volumes))
		names := map[string]bool{}
		for _, e := range container.Env {
			assertSetting(t, e.Name)
			assert.False(t, names[e.Name], "%s is set twice", e.Name)
			names[e.Name] = true
			if strings.HasPrefix(e.Value, "/") {
				assert.True(t, isBelow(e.Value, mountPaths), "%s is below a mount path", e.Value)
			}
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

// env returns the settings of the container. A value from a secret is "secret NAME KEY".
func (m manifests) env() map[string]string {
	env := map[string]string{}
	for _, e := range m.deployment.Spec.Template.Spec.Containers[0].Env {
		env[e.Name] = e.Value
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
			env[e.Name] = "secret " + e.ValueFrom.SecretKeyRef.Name + " " + e.ValueFrom.SecretKeyRef.Key
		}
	}
	return env
}

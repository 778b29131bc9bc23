package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/seed-81f232ab/rls/test/envoyconf"
)

// TestWalkThroughObjectsFitTogether checks the objects that docs/kubernetes.md applies beside the
// chart: Redis and Envoy.
func TestWalkThroughObjectsFitTogether(t *testing.T) {
	services := map[string]corev1.Service{}
	configMaps := map[string]corev1.ConfigMap{}
	for _, file := range []string{"examples/kind/redis.yaml", "examples/kind/envoy.yaml"} {
		var pod corev1.PodTemplateSpec
		for _, object := range objects(t, readFile(t, file)) {
			switch object.Kind {
			case "Deployment":
				var d appsv1.Deployment
				object.decode(t, &d)
				assert.Equal(t, d.Spec.Selector.MatchLabels, d.Spec.Template.Labels)
				pod = d.Spec.Template
			case "Service":
				var s corev1.Service
				object.decode(t, &s)
				services[s.Name] = s
				assert.Equal(t, s.Spec.Selector, pod.Labels)
				assert.Equal(t, s.Spec.Ports[0].TargetPort.StrVal, pod.Spec.Containers[0].Ports[0].Name)
			case "ConfigMap":
				var c corev1.ConfigMap
				object.decode(t, &c)
				configMaps[c.Name] = c
			}
		}
		for _, v := range pod.Spec.Volumes {
			assert.Contains(t, configMaps, v.ConfigMap.Name)
		}
	}
	r, err := render(t, "rls", readFile(t, "examples/kind/values.yaml"))
	require.NoError(t, err)
	manifests := readManifests(t, r.Manifest)
	host, _, _ := strings.Cut(manifests.env()["REDIS_URL"], ":")
	assert.Contains(t, services, host)

	file := filepath.Join(t.TempDir(), "envoy.yaml")
	require.NoError(t, os.WriteFile(file, []byte(configMaps["envoy"].Data["envoy.yaml"]), 0o600))
	bootstrap, err := envoyconf.Bootstrap(file)
	require.NoError(t, err)
	address := bootstrap.StaticResources.Clusters[0].LoadAssignment.Endpoints[0].LbEndpoints[0].GetEndpoint().Address.GetSocketAddress()
	assert.Equal(t, manifests.service.Name, address.Address)
	assert.EqualValues(t, manifests.service.Spec.Ports[0].Port, address.GetPortValue())
	assert.EqualValues(t, services["envoy"].Spec.Ports[0].Port, bootstrap.StaticResources.Listeners[0].Address.GetSocketAddress().GetPortValue())
}

// TestKubernetesPageNamesExistingFiles checks the paths in the commands of docs/kubernetes.md.
func TestKubernetesPageNamesExistingFiles(t *testing.T) {
	paths := regexp.MustCompile(`\b(?:deploy|examples)/[\w./-]*\w`).FindAllString(readFile(t, "docs/kubernetes.md"), -1)
	require.NotEmpty(t, paths)
	for _, p := range paths {
		_, err := os.Stat(path(p))
		assert.NoError(t, err)
	}
}

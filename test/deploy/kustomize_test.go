package deploy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// kustomize builds a folder of the repository, as kubectl kustomize does.
func kustomize(t *testing.T, folder string) manifests {
	t.Helper()
	builtManifests, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), path(folder))
	require.NoError(t, err)
	text, err := builtManifests.AsYaml()
	require.NoError(t, err)
	rendered := readManifests(t, string(text))
	rendered.checkReferences(t)
	return rendered
}

// TestKustomizeBaseEqualsChart compares the base with the default values of the chart.
func TestKustomizeBaseEqualsChart(t *testing.T) {
	base := kustomize(t, "deploy/kustomize/base")
	r, err := render(t, "rls", exampleImage+"limits: {limits.yaml: \"domain: example\"}")
	require.NoError(t, err)
	chart := readManifests(t, r.Manifest)
	image := &chart.deployment.Spec.Template.Spec.Containers[0].Image
	*image = strings.TrimPrefix(*image, "registry.example/") // an overlay of the base names the registry
	assert.Equal(t, chart.deployment.Spec, base.deployment.Spec)
	assert.Equal(t, chart.service.Spec, base.service.Spec)
	assert.Equal(t, chart.pdb.Spec, base.pdb.Spec)
	assert.Equal(t, chart.serviceAccount.AutomountServiceAccountToken, base.serviceAccount.AutomountServiceAccountToken)
	assert.Equal(t, chart.deployment.Name, base.deployment.Name)
	assert.Equal(t, chart.service.Name, base.service.Name)
}

func TestKustomizeExampleAddsLimitsImageAndRedis(t *testing.T) {
	manifests := kustomize(t, "examples/kustomize")
	assert.Equal(t, "rls", manifests.deployment.Namespace)
	assert.EqualValues(t, 3, *manifests.deployment.Spec.Replicas)
	assert.Equal(t, "registry.example/rls:0.1.0", manifests.deployment.Spec.Template.Spec.Containers[0].Image)
	assert.Equal(t, addPodEnv(map[string]string{"LIMITS_PATH": "/limits", "REDIS_URL": "redis.redis.svc:6379"}), manifests.env())
	require.Len(t, manifests.limits(), 1)
	assert.Equal(t, "shop", compile(t, manifests.limits()["limits.yaml"]).Domains()[0].Name)

	pod := newPod(t, manifests.deployment.Spec.Template.Spec, manifests.configMaps, nil)
	out, code := pod.run("doctor", "--settings")
	assert.Zero(t, code, out)
}

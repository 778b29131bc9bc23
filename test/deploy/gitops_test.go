package deploy

import (
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	k8syaml "sigs.k8s.io/yaml"
)

func TestFluxExampleFitsItsTypes(t *testing.T) {
	manifest := objects(t, readFile(t, "examples/flux/release.yaml"))
	require.Len(t, manifest, 2)
	var repository sourcev1.GitRepository
	manifest[0].decode(t, &repository)
	assert.Equal(t, sourcev1.GroupVersion.String(), repository.APIVersion)
	var release helmv2.HelmRelease
	manifest[1].decode(t, &release)
	assert.Equal(t, helmv2.GroupVersion.String(), release.APIVersion)
	source := release.Spec.Chart.Spec.SourceRef
	assert.Equal(t, repository.Kind+" "+repository.Namespace+"/"+repository.Name, source.Kind+" "+source.Namespace+"/"+source.Name)
	assert.Equal(t, chartFolder, release.Spec.Chart.Spec.Chart)
}

// TestArgoCDExampleNamesItsSources checks the parts of the example that name each other. The test
// reads no schema, because the module of Argo CD is too large to download in each run.
func TestArgoCDExampleNamesItsSources(t *testing.T) {
	manifest := objects(t, readFile(t, "examples/argocd/application.yaml"))
	require.Len(t, manifest, 1)
	var application struct {
		Spec struct {
			Sources []struct {
				Path, Ref string
				Helm      struct {
					ValueFiles     []string
					FileParameters []struct{ Name, Path string }
				}
			}
		}
	}
	text, err := yaml.Marshal(manifest[0].fields)
	require.NoError(t, err)
	require.NoError(t, k8syaml.Unmarshal(text, &application))
	require.Len(t, application.Spec.Sources, 2)
	chart, config := application.Spec.Sources[0], application.Spec.Sources[1]
	assert.Equal(t, chartFolder, chart.Path)
	files := chart.Helm.ValueFiles
	for _, parameter := range chart.Helm.FileParameters {
		assert.Contains(t, parameter.Name, `limits.`)
		files = append(files, parameter.Path)
	}
	require.NotEmpty(t, files)
	for _, file := range files {
		assert.True(t, strings.HasPrefix(file, "$"+config.Ref+"/"), file)
	}
}

package deploy

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	k8syaml "sigs.k8s.io/yaml"
)

// resources are the custom resources of a project, by "apiVersion kind". It checks objects as the
// API server does.
type resources map[string]apiextensionsv1.CustomResourceDefinitionVersion

// resource checks the objects of one kind.
type resource struct {
	schema     *structuralschema.Structural
	properties validation.SchemaValidator
	rules      *cel.Validator
}

// moduleFile returns the path of a file of a Go module that go.mod requires.
func moduleFile(t *testing.T, module, file string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	require.NoError(t, err)
	return filepath.Join(trim(out), file)
}

// readResources reads the CustomResourceDefinitions in files.
func readResources(t *testing.T, files ...string) resources {
	t.Helper()
	knownResources := resources{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, document := range strings.Split("\n"+string(text), "\n---") {
			if !strings.Contains(document, "kind: CustomResourceDefinition") {
				continue
			}
			var v1 apiextensionsv1.CustomResourceDefinition
			require.NoError(t, k8syaml.Unmarshal([]byte(document), &v1), file)
			for _, version := range v1.Spec.Versions {
				knownResources[v1.Spec.Group+"/"+version.Name+" "+v1.Spec.Names.Kind] = version
			}
		}
	}
	require.NotEmpty(t, knownResources)
	return knownResources
}

func newResource(t *testing.T, version apiextensionsv1.CustomResourceDefinitionVersion) resource {
	t.Helper()
	var schema apiextensions.JSONSchemaProps
	require.NoError(t, apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(version.Schema.OpenAPIV3Schema, &schema, nil))
	structural, err := structuralschema.NewStructural(&schema)
	require.NoError(t, err)
	properties, _, err := validation.NewSchemaValidator(&schema)
	require.NoError(t, err)
	return resource{structural, properties, cel.NewValidator(structural, true, celconfig.PerCallLimit)}
}

// check checks the object: unknown fields, types, patterns and the rules of the schema.
func (knownResources resources) check(t *testing.T, o object) {
	t.Helper()
	assert.Empty(t, knownResources.problems(t, o), "%s %s", o.APIVersion, o.Kind)
}

// problems returns what the API server would say about the object.
func (knownResources resources) problems(t *testing.T, o object) (problems []string) {
	t.Helper()
	version, found := knownResources[o.APIVersion+" "+o.Kind]
	require.True(t, found, "no schema of %s %s", o.APIVersion, o.Kind)
	resource := newResource(t, version)
	fields := jsonFields(t, o)
	unknownFields := pruning.PruneWithOptions(fields, resource.schema, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	for _, place := range unknownFields {
		problems = append(problems, place+": unknown field")
	}
	defaulting.Default(fields, resource.schema)
	errs := validation.ValidateCustomResource(nil, fields, resource.properties)
	ruleErrs, _ := resource.rules.Validate(context.Background(), field.NewPath(""), resource.schema, fields, nil, celconfig.RuntimeCELCostBudget)
	for _, err := range append(errs, ruleErrs...) {
		problems = append(problems, err.Error())
	}
	return problems
}

// jsonFields returns the fields of the object with the types that JSON has.
func jsonFields(t *testing.T, o object) map[string]any {
	t.Helper()
	text, err := yaml.Marshal(o.fields)
	require.NoError(t, err)
	text, err = k8syaml.YAMLToJSON(text)
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, utiljson.Unmarshal(text, &fields))
	return fields
}

// gatewayResources returns the custom resources of Envoy Gateway.
func gatewayResources(t *testing.T) resources {
	t.Helper()
	files, err := filepath.Glob(moduleFile(t, "github.com/envoyproxy/gateway", "charts/gateway-helm/charts/crds/crds/generated/*.yaml"))
	require.NoError(t, err)
	return readResources(t, files...)
}

// TestSchemasFindMistakes gives the schemas objects with mistakes, which the schemas must find.
func TestSchemasFindMistakes(t *testing.T) {
	knownResources := gatewayResources(t)
	policy := func(rule string) object {
		return objects(t, `
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: BackendTrafficPolicy
metadata: {name: a}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: shop}]
  rateLimit: {type: Global, global: {rules: [`+rule+`]}}`)[0]
	}
	assert.Empty(t, knownResources.problems(t, policy("{limit: {requests: 10, unit: Second}}")))
	for rule, want := range map[string]string{
		"{limit: {requests: 10, unit: Seconds}}": `Unsupported value: "Seconds"`,
		"{limits: {requests: 10, unit: Second}}": "limits: unknown field",
		"{clientSelectors: []}":                  "limit: Required value",
		"{limit: {requests: ten, unit: Second}}": "must be of type integer",
	} {
		assert.Contains(t, strings.Join(knownResources.problems(t, policy(rule)), "\n"), want)
	}
}

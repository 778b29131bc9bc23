package deploy

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// field returns the field at a path of names below the object.
func (o object) field(t *testing.T, names ...string) any {
	t.Helper()
	var value any = o.fields
	for _, name := range names {
		fields, ok := value.(map[string]any)
		require.True(t, ok, "%s: no fields above %s", o.Kind, name)
		value = fields[name]
	}
	require.NotNil(t, value, "%s: no field %v", o.Kind, names)
	return value
}

// TestEmissaryExampleFitsLimits checks names and keys. No registry of packages has the schemas.
func TestEmissaryExampleFitsLimits(t *testing.T) {
	service := objects(t, readFile(t, "examples/emissary/rls.yaml"))[0]
	assert.Equal(t, "rls.rls:8081", service.field(t, "spec", "service"))
	domain := compile(t, renderManifests(t, exampleImage+readFile(t, "examples/emissary/limits.yaml")).limits()["limits.yaml"]).Domains()[0]
	assert.Equal(t, domain.Name, service.field(t, "spec", "domain"))
	for _, mapping := range objects(t, readFile(t, "examples/emissary/mapping.yaml")) {
		assert.Equal(t, service.APIVersion, mapping.APIVersion)
		assert.NotEmpty(t, mapping.field(t, "spec", "labels", domain.Name))
	}
}

// TestGlooExampleFitsLimits checks names and keys. No registry of packages has the schemas.
func TestGlooExampleFitsLimits(t *testing.T) {
	manifest := objects(t, readFile(t, "examples/gloo/rls.yaml"))
	require.Len(t, manifest, 2)
	upstream, settings := manifest[0], manifest[1]
	assert.Equal(t, map[string]any{"serviceName": "rls", "serviceNamespace": "rls", "servicePort": 8081}, upstream.field(t, "spec", "kube"))
	assert.Equal(t, true, upstream.field(t, "spec", "useHttp2"), "gRPC needs HTTP/2")
	assert.Equal(t, upstream.field(t, "metadata"), settings.field(t, "spec", "ratelimitServer", "ratelimitServerRef"))
	host := objects(t, readFile(t, "examples/gloo/virtualservice.yaml"))[0]
	assert.Len(t, host.field(t, "spec", "virtualHost", "options", "ratelimit", "rateLimits"), 1)
}

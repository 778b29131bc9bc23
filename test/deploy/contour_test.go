package deploy

import (
	"testing"

	contourv1 "github.com/projectcontour/contour/apis/projectcontour/v1"
	contourv1alpha1 "github.com/projectcontour/contour/apis/projectcontour/v1alpha1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestContourExamplesFitItsTypes(t *testing.T) {
	crds := readResources(t, moduleFile(t, "github.com/projectcontour/contour", "examples/contour/01-crds.yaml"))
	manifest := objects(t, readFile(t, "examples/contour/rls.yaml"))
	require.Len(t, manifest, 2)
	crds.check(t, manifest[0])
	crds.check(t, manifest[1])
	var service contourv1alpha1.ExtensionService
	var config contourv1alpha1.ContourConfiguration
	manifest[0].decode(t, &service)
	manifest[1].decode(t, &config)
	assert.Equal(t, "h2c", *service.Spec.Protocol)
	assert.EqualValues(t, 8081, service.Spec.Services[0].Port)
	rls := config.Spec.RateLimitService
	assert.Equal(t, contourv1alpha1.NamespacedName{Name: service.Name, Namespace: service.Namespace}, rls.ExtensionService)
	assert.Equal(t, "contour", rls.Domain)

	manifest = objects(t, readFile(t, "examples/contour/httpproxy.yaml"))
	require.Len(t, manifest, 1)
	crds.check(t, manifest[0])
	var proxy contourv1.HTTPProxy
	manifest[0].decode(t, &proxy)
	assert.NotEmpty(t, proxy.Spec.VirtualHost.RateLimitPolicy.Global.Descriptors)
	assert.Len(t, proxy.Spec.Routes[0].RateLimitPolicy.Global.Descriptors, 2)
}

package deploy

import (
	"os"
	"strings"
	"testing"
	"time"

	egv1alpha1 "github.com/envoyproxy/gateway/api/v1alpha1"
	"github.com/envoyproxy/gateway/api/v1alpha1/validation"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
)

func TestEnvoyGatewayConfigStartsRLS(t *testing.T) {
	manifest := objects(t, readFile(t, "examples/envoy-gateway/config.yaml"))
	require.Len(t, manifest, 1)
	var config egv1alpha1.EnvoyGateway
	manifest[0].decode(t, &config)
	require.NoError(t, validation.ValidateEnvoyGateway(&config))
	for _, e := range config.Provider.Kubernetes.RateLimitDeployment.Container.Env {
		assertSetting(t, e.Name)
	}
	assert.Equal(t, egv1alpha1.RedisBackendType, config.RateLimit.Backend.Type)
}

func TestEnvoyGatewayPolicyHasGlobalRulesForIPv4IPv6AndUsers(t *testing.T) {
	manifest := objects(t, readFile(t, "examples/envoy-gateway/policy.yaml"))
	require.Len(t, manifest, 1)
	gatewayResources(t).check(t, manifest[0])
	var policy egv1alpha1.BackendTrafficPolicy
	manifest[0].decode(t, &policy)
	require.NotNil(t, policy.Spec.RateLimit.Global)
	assert.Len(t, policy.Spec.RateLimit.Global.Rules, 3)
}

// TestPodOfEnvoyGatewayRuns starts rls as the deployment that Envoy Gateway itself expects of its
// rate-limit service, from the tests of Envoy Gateway.
func TestPodOfEnvoyGatewayRuns(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(moduleFile(t, "github.com/envoyproxy/gateway", "internal/infrastructure/kubernetes/ratelimit/testdata/deployments/default.yaml"))
	require.NoError(t, err)
	var deployment appsv1.Deployment
	objects(t, string(text))[0].decode(t, &deployment)
	spec := deployment.Spec.Template.Spec
	assert.Equal(t, []string{"/bin/ratelimit"}, spec.Containers[0].Command, "the image has this path")

	e := startGateway(t)
	pod := newPod(t, spec, nil, e.secrets)
	out, code := pod.run("doctor", "--settings")
	require.Zero(t, code, out)
	addr := pod.withSettings(e.localSettings).serve()
	polltest.Until(t, 30*time.Second, func() bool { // until the limits of xDS are in force
		out, code = pod.run(append([]string{"hit", "-a", addr, "--timeout", "10s", "-d", "shop", "tenant=acme"}, e.flags...)...)
		return code == 0 && strings.Contains(out, "remaining")
	}, "the call is not counted")
}

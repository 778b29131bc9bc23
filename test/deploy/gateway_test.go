package deploy

import (
	"testing"

	egv1alpha1 "github.com/envoyproxy/gateway/api/v1alpha1"
	"github.com/envoyproxy/gateway/api/v1alpha1/validation"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEnvoyGatewayConfigStartsRLS(t *testing.T) {
	manifest := objects(t, read(t, "examples/envoy-gateway/config.yaml"))
	require.Len(t, manifest, 1)
	var config egv1alpha1.EnvoyGateway
	manifest[0].decode(t, &config)
	require.NoError(t, validation.ValidateEnvoyGateway(&config))
	for _, e := range config.Provider.Kubernetes.RateLimitDeployment.Container.Env {
		assertSetting(t, e.Name)
	}
	assert.Equal(t, egv1alpha1.RedisBackendType, config.RateLimit.Backend.Type)
}

func TestEnvoyGatewayPolicyHasTwoGlobalRules(t *testing.T) {
	manifest := objects(t, read(t, "examples/envoy-gateway/policy.yaml"))
	require.Len(t, manifest, 1)
	var policy egv1alpha1.BackendTrafficPolicy
	manifest[0].decode(t, &policy)
	require.NotNil(t, policy.Spec.RateLimit.Global)
	assert.Len(t, policy.Spec.RateLimit.Global.Rules, 2)
}

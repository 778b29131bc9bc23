package deploy

import (
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/seed-81f232ab/rls/test/envoyconf"
)

func istioResources(t *testing.T) resources {
	t.Helper()
	return readResources(t, moduleFile(t, "istio.io/api", "kubernetes/customresourcedefinitions.gen.yaml"))
}

// TestIstioPatchesFitEnvoy reads each patch as the Envoy message that it patches.
func TestIstioPatchesFitEnvoy(t *testing.T) {
	crds := istioResources(t)
	for _, file := range []string{"examples/istio/gateway.yaml", "examples/istio/sidecar.yaml", "examples/quota/istio.yaml"} {
		for _, o := range objects(t, readFile(t, file)) {
			crds.check(t, o)
			require.Equal(t, "networking.istio.io/v1alpha3 EnvoyFilter", o.APIVersion+" "+o.Kind)
			filter := new(networking.EnvoyFilter)
			o.decodeSpec(t, filter)
			require.Len(t, filter.ConfigPatches, strings.Count(readFile(t, file), "applyTo:"))
			for _, patch := range filter.ConfigPatches {
				text, err := protojson.Marshal(patch.Patch.Value)
				require.NoError(t, err)
				message := map[networking.EnvoyFilter_ApplyTo]proto.Message{
					networking.EnvoyFilter_HTTP_FILTER:  new(hcmv3.HttpFilter),
					networking.EnvoyFilter_VIRTUAL_HOST: new(routev3.VirtualHost),
				}[patch.ApplyTo]
				require.NotNil(t, message, patch.ApplyTo)
				if host, isHost := message.(*routev3.VirtualHost); isHost {
					// Istio merges the patch into a host that has a name and domains.
					require.NoError(t, protojson.Unmarshal(text, host))
					require.NotEmpty(t, host.RateLimits)
					host.Name, host.Domains = "x", []string{"*"}
					assert.NoError(t, envoyconf.Check(host))
					continue
				}
				assert.NoError(t, envoyconf.Unmarshal(text, message))
				assert.Contains(t, string(text), "outbound|8081||rls.rls.svc.cluster.local")
			}
		}
	}
}

func TestIstioDestinationRuleNamesTheService(t *testing.T) {
	manifest := objects(t, readFile(t, "examples/istio/rls.yaml"))
	require.Len(t, manifest, 1)
	istioResources(t).check(t, manifest[0])
	rule := new(networking.DestinationRule)
	manifest[0].decodeSpec(t, rule)
	assert.Equal(t, "rls.rls.svc.cluster.local", rule.Host)
}

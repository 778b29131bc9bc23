package deploy

import (
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

// TestIstioPatchesAreEnvoys reads each patch as the part of Envoy's configuration
// that it is put into.
func TestIstioPatchesAreEnvoys(t *testing.T) {
	for _, file := range []string{"examples/istio/gateway.yaml", "examples/istio/sidecar.yaml"} {
		for _, o := range objects(t, read(t, file)) {
			require.Equal(t, "networking.istio.io/v1alpha3 EnvoyFilter", o.APIVersion+" "+o.Kind)
			filter := new(networking.EnvoyFilter)
			o.spec(t, filter)
			require.Len(t, filter.ConfigPatches, 2)
			for _, patch := range filter.ConfigPatches {
				text, err := protojson.Marshal(patch.Patch.Value)
				require.NoError(t, err)
				into := map[networking.EnvoyFilter_ApplyTo]proto.Message{
					networking.EnvoyFilter_HTTP_FILTER:  new(hcmv3.HttpFilter),
					networking.EnvoyFilter_VIRTUAL_HOST: new(routev3.VirtualHost),
				}[patch.ApplyTo]
				require.NotNil(t, into, patch.ApplyTo)
				if host, partial := into.(*routev3.VirtualHost); partial {
					// Merged into one that has what a virtual host must have.
					require.NoError(t, protojson.Unmarshal(text, host))
					require.NotEmpty(t, host.RateLimits)
					host.Name, host.Domains = "x", []string{"*"}
					assert.NoError(t, envoyconf.Check(host))
					continue
				}
				assert.NoError(t, envoyconf.Unmarshal(text, into))
				assert.Contains(t, string(text), "outbound|8081||rls.rls.svc.cluster.local")
			}
		}
	}
}

func TestIstioDestinationRule(t *testing.T) {
	all := objects(t, read(t, "examples/istio/rls.yaml"))
	require.Len(t, all, 1)
	rule := new(networking.DestinationRule)
	all[0].spec(t, rule)
	assert.Equal(t, "rls.rls.svc.cluster.local", rule.Host)
}

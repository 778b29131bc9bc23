//go:build e2e

package e2e_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// istioCluster is the name that Istio gives to the cluster of the Service in examples/istio.
const istioCluster = "outbound|8081||rls.rls.svc.cluster.local"

// istioPatch is a patch of an EnvoyFilter.
type istioPatch struct {
	ApplyTo string `yaml:"applyTo"`
	Patch   struct{ Value any }
}

func istioPatches(t *testing.T, text string) (patches []istioPatch) {
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var filter struct {
			Spec struct {
				ConfigPatches []istioPatch `yaml:"configPatches"`
			}
		}
		err := d.Decode(&filter)
		if errors.Is(err, io.EOF) {
			return patches
		}
		require.NoError(t, err)
		patches = append(patches, filter.Spec.ConfigPatches...)
	}
}

// readInto reads the value of p into m.
func (p istioPatch) readInto(t *testing.T, m proto.Message) {
	text, err := json.Marshal(p.Patch.Value)
	require.NoError(t, err)
	require.NoError(t, protojson.Unmarshal(text, m))
}

// validateIstio puts the patches into a bootstrap as Istio does, and lets Envoy load it. It returns the output of Envoy.
func validateIstio(t *testing.T, patches []istioPatch) (output string, err error) {
	config := bootstrap(t, "quota/envoy.yaml")
	rls := config.cluster("rls")
	rls.Name, rls.LoadAssignment.ClusterName = istioCluster, istioCluster
	config.editHTTP(func(hcm *hcmv3.HttpConnectionManager) {
		hcm.HttpFilters = hcm.HttpFilters[len(hcm.HttpFilters)-1:]
		for _, patch := range patches {
			if patch.ApplyTo == "VIRTUAL_HOST" {
				host := new(routev3.VirtualHost)
				patch.readInto(t, host)
				proto.Merge(hcm.GetRouteConfig().VirtualHosts[0], host)
				continue
			}
			require.Equal(t, "HTTP_FILTER", patch.ApplyTo)
			filter := new(hcmv3.HttpFilter)
			patch.readInto(t, filter)
			hcm.HttpFilters = append([]*hcmv3.HttpFilter{filter}, hcm.HttpFilters...)
		}
	})
	text, err := protojson.Marshal(config.Bootstrap)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "envoy.json")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	out, err := exec.Command(envoyBin, "--mode", "validate", "-c", file).CombinedOutput()
	return string(out), err
}

func TestEnvoyLoadsThePatchesForIstio(t *testing.T) {
	for _, file := range []string{"istio/gateway.yaml", "istio/sidecar.yaml", "quota/istio.yaml"} {
		t.Run(file, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(root, "examples", file))
			require.NoError(t, err)
			patches := istioPatches(t, string(text))
			require.Len(t, patches, strings.Count(string(text), "applyTo:"))
			output, err := validateIstio(t, patches)
			require.NoError(t, err, output)
			assert.Contains(t, output, "OK")

			_, domain, _ := strings.Cut(string(text), "domain: ")
			domain, _, _ = strings.Cut(domain, "\n")
			output, err = validateIstio(t, istioPatches(t, strings.Replace(string(text), "domain: "+domain, `domain: ""`, 1)))
			require.Error(t, err, output)
			assert.Contains(t, output, "Domain")
		})
	}
}

package envoyconf_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/test/envoyconf"
)

const examples = "../../examples"

func TestExamplesAreValid(t *testing.T) {
	files, err := filepath.Glob(examples + "/envoy*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		_, err := envoyconf.Bootstrap(file)
		assert.NoError(t, err)
	}
}

// TestCheckFindsMistakes puts one mistake at a time into the example.
func TestCheckFindsMistakes(t *testing.T) {
	example, err := os.ReadFile(examples + "/envoy.yaml")
	require.NoError(t, err)
	for name, test := range map[string]struct{ old, replacement, want string }{
		"an unknown field":            {"static_resources:", "static_resource:", "static_resource"},
		"an unknown field in an Any":  {"failure_mode_deny:", "failure_mode_denied:", "failure_mode_denied"},
		"an unknown type":             {"filters.http.router.v3.Router", "filters.http.router.v3.Ruter", "Ruter"},
		"an unknown action":           {"destination_cluster: {}", "destination: {}", "destination"},
		"a forbidden value":           {`stat_prefix: shop`, `stat_prefix: ""`, "StatPrefix"},
		"a forbidden value in an Any": {"domain: shop ", `domain: "" `, "Domain"},
		"an unknown value of an enum": {"DRAFT_VERSION_03", "DRAFT_VERSION_04", "DRAFT_VERSION_04"},
		"a route to no cluster":       {"route: {cluster: echo}\n\n", "route: {cluster: ecco}\n\n", "no cluster ecco"},
		"a filter with no cluster":    {"cluster_name: rls}", "cluster_name: rsl}", "no cluster rsl"},
		"a duplicate cluster":         {"- name: echo\n    type", "- name: rls\n    type", "defined twice"},
		"a duplicate key":             {"              domain: shop ", "              timeout: 1s\n              domain: shop ", "already defined"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, string(example), test.old)
			changedExample := strings.Replace(string(example), test.old, test.replacement, 1)
			assert.ErrorContains(t, envoyconf.Unmarshal([]byte(changedExample), new(bootstrapv3.Bootstrap)), test.want)
		})
	}
}

//go:build parity

package sidebyside

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCountsOfLongWindowsAreCarriedOver runs the commands of docs/lab/differences.md.
func TestCountsOfLongWindowsAreCarriedOver(t *testing.T) {
	limits := limitsFiles{"shop": "{domain: shop, descriptors: [{key: tenant, rate_limit: {unit: month, requests_per_unit: 10}}]}"}
	pair := startPair(t, "migration", limits, []string{"CACHE_KEY_PREFIX="}, nil)
	remaining := func(program *program, tenant string) uint32 {
		response, err := program.call(t, request("shop", "tenant", tenant))
		require.NoError(t, err)
		require.Equal(t, rlsv3.RateLimitResponse_OK, response.GetOverallCode())
		return response.GetStatuses()[0].GetLimitRemaining()
	}
	tenants := []string{"acme", "a_b", "two words"}
	for range 3 {
		for _, tenant := range tenants {
			remaining(pair.theirs, tenant)
		}
	}
	require.EqualValues(t, 9, remaining(pair.ours, "acme"), "during the rollout, both services count")

	page, err := os.ReadFile(root + "/docs/lab/differences.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "## Counts of long windows\n")
	_, commands, _ := strings.Cut(section, "```sh\n")
	commands, _, found := strings.Cut(commands, "```")
	require.True(t, found)
	folder := t.TempDir()
	require.NoError(t, os.Symlink(os.Getenv("RLS_TEST_RLS"), filepath.Join(folder, "rls")))
	shell := exec.CommandContext(t.Context(), "bash", "-c", strings.ReplaceAll(commands, "rls hit", "rls hit -a "+pair.ours.grpcAddr))
	shell.Env = append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"), "OLD="+pair.theirRedis.Addr)
	out, err := shell.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for i, want := range []uint32{5, 6, 6} {
		assert.Equal(t, want, remaining(pair.ours, tenants[i]), tenants[i])
	}
}

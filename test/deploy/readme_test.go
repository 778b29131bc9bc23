package deploy

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestChartReadmeDescribesValues compares the README of the chart with the output of helm-docs.
func TestChartReadmeDescribesValues(t *testing.T) {
	t.Parallel()
	helmDocs := exec.CommandContext(t.Context(), "make", "-s", "chart-readme", "HELM_DOCS_FLAGS=--dry-run")
	helmDocs.Dir = path(".")
	out, err := helmDocs.Output()
	require.NoError(t, err)
	assert.Equal(t, trim(out), trim([]byte(readFile(t, chartFolder+"/README.md"))), "run make docs")
}

// TestValuesInDocsRender renders the chart with the values that a page marks as such.
func TestValuesInDocsRender(t *testing.T) {
	t.Parallel()
	for page, variables := range map[string][]string{ // a variable of each block
		"kubernetes.md": {"ADMIN_TOKENS_FILE"}, "operations.md": {"DEBUG_TLS_CERT"},
		"production.md": {"REDIS_AUTH_FILE", "REDIS_SENTINEL_AUTH"},
	} {
		blocks := strings.Split(readFile(t, "docs/"+page), "<!-- values -->\n```yaml\n")[1:]
		require.Len(t, blocks, len(variables), page)
		for i, block := range blocks {
			values, _, _ := strings.Cut(block, "```")
			assert.Contains(t, renderManifests(t, shopFile+"\n"+values).env(), variables[i], page)
		}
	}
}

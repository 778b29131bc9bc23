package deploy

import (
	"os/exec"
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
	assert.Equal(t, trim(out), trim([]byte(read(t, chartFolder+"/README.md"))), "run make docs")
}

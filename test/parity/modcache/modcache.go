//go:build parity

// Package modcache finds the modules whose files the tests of parity read.
package modcache

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// The modules. The version of the incumbent is in RLS_PARITY_INCUMBENT.
const (
	IncumbentPath = "github.com/envoyproxy/ratelimit"
	envoyGateway  = "github.com/envoyproxy/gateway@v1.9.1"
)

// Incumbent returns the folder of the incumbent in the cache of Go.
func Incumbent(t *testing.T) string {
	t.Helper()
	version := os.Getenv("RLS_PARITY_INCUMBENT")
	require.NotEmpty(t, version, "run make parity")
	return dir(t, IncumbentPath+"@"+version)
}

// EnvoyGateway returns the folder of Envoy Gateway in the cache of Go.
func EnvoyGateway(t *testing.T) string {
	t.Helper()
	return dir(t, envoyGateway)
}

func dir(t *testing.T, module string) string {
	t.Helper()
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module)
	download.Dir = t.TempDir() // outside of the module, so that go.mod does not decide the version
	out, err := download.Output()
	require.NoError(t, err, "%s", out)
	var found struct{ Dir string }
	require.NoError(t, json.Unmarshal(out, &found))
	return found.Dir
}

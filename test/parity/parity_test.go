//go:build parity

package parity

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The tests of the incumbent call the package of its command.
const (
	incumbent = "github.com/envoyproxy/ratelimit"
	runner    = "src/service_cmd/runner/runner.go"
)

// TestIncumbentsIntegrationTestsPass runs the integration tests of the incumbent against RLS_TEST_RLS.
func TestIncumbentsIntegrationTestsPass(t *testing.T) {
	source := copyIncumbent(t)
	startServers(t, source)
	overlay := writeOverlay(t, source)
	cmd := exec.CommandContext(t.Context(), "go", "test", "-json", "-count=1", "-timeout=20m", "-tags=integration",
		"-overlay="+overlay, "./test/integration/")
	if tests := os.Getenv("RLS_PARITY_RUN"); tests != "" {
		cmd.Args = append(cmd.Args, "-run="+tests)
	}
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "PROJECT_DIR="+source, "SSL_CERT_FILE="+filepath.Join(source, "cert.pem"), "GOFLAGS=-mod=mod")
	output, _ := cmd.Output() // the events tell which tests failed
	cases := readCases(t, output)
	require.NotEmpty(t, cases, "%s", output)
	passed := 0
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		c := cases[name]
		if c.result == "pass" {
			passed++
		} else {
			assert.Fail(t, name+": "+c.result, "%s", c.output)
		}
	}
	fmt.Printf("integration tests of %s: %d of %d pass\n", incumbent, passed, len(cases))
}

// testCase is a test without subtests.
type testCase struct{ result, output string }

// readCases returns the tests of the events of go test -json, by name.
func readCases(t *testing.T, events []byte) map[string]testCase {
	t.Helper()
	cases := map[string]testCase{}
	for line := range strings.Lines(string(events)) {
		var e struct{ Action, Test, Output string }
		require.NoError(t, json.Unmarshal([]byte(line), &e), "%s", line)
		c := cases[e.Test]
		switch e.Action {
		case "output", "build-output":
			c.output += e.Output
		case "pass", "fail", "skip":
			c.result = e.Action
		}
		cases[e.Test] = c
	}
	maps.DeleteFunc(cases, func(name string, c testCase) bool {
		isParent := slices.ContainsFunc(slices.Collect(maps.Keys(cases)), func(other string) bool {
			return strings.HasPrefix(other, name+"/")
		})
		return name == "" && c.result == "pass" || name != "" && isParent
	})
	return cases
}

// copyIncumbent copies the module of the incumbent out of the cache of Go, because its tests write files.
func copyIncumbent(t *testing.T) string {
	t.Helper()
	version := os.Getenv("RLS_PARITY_INCUMBENT")
	require.NotEmpty(t, version, "run make parity")
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", incumbent+"@"+version)
	download.Dir = t.TempDir() // outside of the module, so that go.mod does not decide the version
	out, err := download.Output()
	require.NoError(t, err, "%s", out)
	var module struct{ Dir string }
	require.NoError(t, json.Unmarshal(out, &module))
	source := filepath.Join(t.TempDir(), "ratelimit")
	require.NoError(t, os.CopyFS(source, os.DirFS(module.Dir)))
	return source
}

// writeOverlay returns the file that tells go test to replace the runner.
func writeOverlay(t *testing.T, source string) string {
	t.Helper()
	replacement, err := filepath.Abs("testdata/runner.go.txt")
	require.NoError(t, err)
	content, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(source, runner): replacement}})
	require.NoError(t, err)
	overlay := filepath.Join(t.TempDir(), "overlay.json")
	require.NoError(t, os.WriteFile(overlay, content, 0o600))
	return overlay
}

//go:build parity

package parity

import (
	"bytes"
	"cmp"
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

	"github.com/seed-81f232ab/rls/test/parity/modcache"
)

// The tests of the incumbent call the package of its command.
const runner = "src/service_cmd/runner/runner.go"

// TestIncumbentsIntegrationTestsPass runs the integration tests of the incumbent against RLS_TEST_RLS.
func TestIncumbentsIntegrationTestsPass(t *testing.T) {
	source := copyIncumbent(t)
	startServers(t, source)
	overlay := writeOverlay(t, source)
	run := func(tests string) map[string]testCase {
		cmd := exec.CommandContext(t.Context(), "go", "test", "-json", "-count=1", "-timeout=20m", "-tags=integration",
			"-overlay="+overlay, "-run="+tests, "./test/integration/")
		cmd.Dir = source
		cmd.Env = append(os.Environ(), "PROJECT_DIR="+source, "SSL_CERT_FILE="+filepath.Join(source, "cert.pem"), "GOFLAGS=-mod=mod", "GOWORK=off")
		var problems bytes.Buffer
		cmd.Stderr = &problems
		output, _ := cmd.Output() // the events tell which tests failed
		cases := readCases(t, output)
		require.NotEmpty(t, cases, "%s", &problems)
		return cases
	}
	cases := run(cmp.Or(os.Getenv("RLS_PARITY_RUN"), "."))
	for name, c := range cases {
		if c.result != "pass" && name != "" { // a minute may have ended, which the tests don't expect
			maps.Copy(cases, run("^"+strings.ReplaceAll(name, "/", "$/^")+"$"))
		}
	}
	passedCount := 0
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		c := cases[name]
		if c.result == "pass" {
			passedCount++
		} else {
			assert.Fail(t, name+": "+c.result, "%s", c.output)
		}
	}
	fmt.Printf("integration tests of %s: %d of %d pass\n", modcache.IncumbentPath, passedCount, len(cases))
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
	isBuilt := len(cases) > 1
	maps.DeleteFunc(cases, func(name string, c testCase) bool {
		isParent := slices.ContainsFunc(slices.Collect(maps.Keys(cases)), func(other string) bool {
			return strings.HasPrefix(other, name+"/")
		})
		return name == "" && isBuilt || name != "" && isParent
	})
	return cases
}

// copyIncumbent copies the module of the incumbent out of the cache of Go, because its tests write files.
func copyIncumbent(t *testing.T) string {
	t.Helper()
	source := filepath.Join(t.TempDir(), "ratelimit")
	require.NoError(t, os.CopyFS(source, os.DirFS(modcache.Incumbent(t))))
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

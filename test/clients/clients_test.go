//go:build clients

package clients

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// limits admit two permits in any second. A sliding_log has no whole second, so the
// caller needs the exact time of the header.
const limits = `
domain: jobs
descriptors:
  - key: api
    rate_limit: {unit: second, requests_per_unit: 2, algorithm: sliding_log}
  - key: once
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: closed
    rate_limit: {unit: second, requests_per_unit: 0}
`

// callers prepare the caller of each language in a folder, and return its command line without
// arguments.
var callers = map[string]func(t *testing.T, folder string) []string{
	"python": func(t *testing.T, folder string) []string {
		python, err := filepath.Abs("../../.tools/python/bin/python")
		require.NoError(t, err)
		require.NoError(t, os.Mkdir(filepath.Join(folder, "generated"), 0o755))
		run(t, folder, python, "generate.py", "rls.binpb", "generated")
		return []string{"env", "PYTHONPATH=generated", python, "acquire.py"}
	},
	"node": func(t *testing.T, folder string) []string {
		run(t, folder, "npm", "install", "--silent")
		return []string{"node", "acquire.mjs"}
	},
	"java": func(t *testing.T, folder string) []string {
		run(t, folder, "mvn", "-q", "-B", "compile")
		return []string{"sh", "-c", `mvn -q -B exec:java -Dexec.args="$*"`, "acquire"}
	},
}

// checks are the command lines of the callers that ask once.
var checks = map[string][]string{
	"python": {"python3", "check.py"},
	"node":   {"node", "check.mjs"},
	"java":   {"sh", "-c", `mvn -q -B exec:java -Dexec.mainClass=Check -Dexec.args="$*"`, "check"},
}

func TestCallersWaitForPermitsOrAskOnce(t *testing.T) {
	program := os.Getenv("RLS_TEST_RLS")
	require.NotEmpty(t, program, "run this test by make test-clients")
	addr, httpAddr := startService(t, program)
	languages := strings.Fields(os.Getenv("RLS_TEST_LANGUAGES"))
	require.NotEmpty(t, languages)
	for _, language := range languages {
		t.Run(language, func(t *testing.T) {
			folder := t.TempDir()
			require.NoError(t, os.CopyFS(folder, os.DirFS("../../examples/clients/"+language)))
			protocol, err := exec.Command(program, "schema", "protocol").Output()
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(folder, "rls.binpb"), protocol, 0o644))
			require.Contains(t, callers, language)
			command := callers[language](t, folder)

			begin := time.Now()
			out := run(t, folder, append(slices.Clip(command), addr, "jobs", "api="+language, "5")...)
			assert.GreaterOrEqual(t, time.Since(begin), 2*time.Second, "5 permits of 2 a second")
			for n := 1; n <= 5; n++ {
				assert.Contains(t, out, fmt.Sprintf("permit %d after ", n))
			}
			cmd := exec.Command(command[0], append(slices.Clip(command[1:]), addr, "jobs", "closed=x", "1")...)
			cmd.Dir = folder
			denial, err := cmd.CombinedOutput()
			assert.Error(t, err)
			assert.Contains(t, string(denial), "can never pass")

			check := func(url string) string { // the long timeout is for slow machines
				return run(t, folder, append(slices.Clone(checks[language]), url, "jobs", "once="+language, "10")...)
			}
			assert.Contains(t, check("http://"+httpAddr), "200\n")
			assert.Regexp(t, `429 Retry-After: \d+\n`, check("http://"+httpAddr))
			assert.Contains(t, check("http://"+addr), "\n200\n", "the gRPC port gives no answer to HTTP, so the request passes")
		})
	}
}

// run runs a command to its end and returns its output.
func run(t *testing.T, folder string, command ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Dir = folder
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", strings.Join(command, " "), out)
	return string(out)
}

var listening = regexp.MustCompile(`msg=listening grpc=(\S+) http=(\S+)`)

// startService starts the service with counters in memory, and returns its addresses.
func startService(t *testing.T, program string) (grpcAddr, httpAddr string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "limits.yaml")
	require.NoError(t, os.WriteFile(path, []byte(limits), 0o644))
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, "serve", "--limits", path)
	cmd.Env = []string{"GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "HOST=127.0.0.1", "PORT=0", "DEBUG_PORT=0"}
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
	})
	var log bytes.Buffer
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		log.WriteString(lines.Text() + "\n")
		if match := listening.FindStringSubmatch(lines.Text()); match != nil {
			go func() { // the service must not block on a full pipe
				for lines.Scan() {
				}
			}()
			return match[1], match[2]
		}
	}
	require.FailNow(t, "the service does not listen", log.String())
	return "", ""
}

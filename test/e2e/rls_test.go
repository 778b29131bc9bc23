//go:build e2e

package e2e_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// rls is one replica of the service.
type rls struct {
	*process
	grpc, http string // host:port
}

// portOf returns the port of host:port.
func portOf(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }

var listening = regexp.MustCompile(`msg=listening grpc=(\S+) http=(\S+) `)

// startRLS runs the service on free ports with limits from a file or directory. Its own
// rate-limit headers are on, and it stops without a delay.
func startRLS(t *testing.T, limits string, env ...string) *rls {
	t.Helper()
	env = append([]string{
		"GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "HOST=127.0.0.1", "PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
		"LIMITS_PATH=" + limits, "LIMIT_RESPONSE_HEADERS_ENABLED=true", "DRAIN_DELAY=0s",
	}, env...)
	r := &rls{process: start(t, env, rlsBin, "serve")}
	r.await("listeners", func() bool {
		m := listening.FindStringSubmatch(r.text())
		if m != nil {
			r.grpc, r.http = m[1], m[2]
		}
		return m != nil
	})
	return r
}

// exampleLimits returns a new directory with the limits files of the examples.
func exampleLimits(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"limits.yaml", "limits-partner.yaml"} {
		text, err := os.ReadFile(filepath.Join(root, "examples", name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	return dir
}

// limitsFile writes a limits file and returns its path.
func limitsFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "limits.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

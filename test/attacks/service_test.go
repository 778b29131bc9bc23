//go:build attacks

package attacks

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// build returns the path of the built program.
func build(t *testing.T) string {
	program := filepath.Join(t.TempDir(), "rls")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../../cmd/rls").CombinedOutput()
	require.NoError(t, err, string(out))
	return program
}

// service is a running service that counts in Redis.
type service struct {
	t                 *testing.T
	cmd               *exec.Cmd
	grpc, http, debug string
	envoy             envoy // only in attacks with an Envoy

	mu    sync.Mutex
	lines bytes.Buffer
}

var listeningLine = regexp.MustCompile(`msg=listening grpc=(\S+) http=(\S+) debug=(\S+)`)

// otherLimits has the limits of the other client.
const otherLimits = `
domain: d
descriptors:
- {key: k, rate_limit: {unit: hour, requests_per_unit: 1000000}}
- {key: q, quota: true, rate_limit: {unit: second, requests_per_unit: 1000, algorithm: token_bucket}}
`

// startService starts the program with further settings.
func startService(t *testing.T, program string, settings ...string) *service {
	t.Helper()
	return startServiceWithLimits(t, program, otherLimits, settings...)
}

// startServiceWithLimits starts the program with a limits file and further settings.
func startServiceWithLimits(t *testing.T, program, content string, settings ...string) *service {
	t.Helper()
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	require.NoError(t, os.WriteFile(limits, []byte(content), 0o600))
	db := redistest.Open(t)
	s := &service{t: t, cmd: exec.CommandContext(t.Context(), program, "serve")}
	s.cmd.Env = []string{
		"GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "HOST=127.0.0.1", "PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
		"REDIS_URL=" + db.Addr, "CACHE_KEY_PREFIX=" + db.Prefix, "LIMITS_PATH=" + limits,
	}
	s.cmd.Env = append(s.cmd.Env, settings...)
	stderr, err := s.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, s.cmd.Start())
	addresses, done := make(chan []string, 1), make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			s.mu.Lock()
			s.lines.WriteString(lines.Text() + "\n")
			s.mu.Unlock()
			if m := listeningLine.FindStringSubmatch(lines.Text()); m != nil {
				addresses <- m
			}
		}
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-done
		_ = s.cmd.Wait()
		if t.Failed() {
			t.Log(s.log())
		}
	})
	select {
	case m := <-addresses:
		s.grpc, s.http, s.debug = m[1], m[2], m[3]
	case <-done:
		require.FailNow(t, "the service ended", s.log())
	case <-time.After(30 * time.Second):
		require.FailNow(t, "the service does not listen", s.log())
	}
	return s
}

func (s *service) log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines.String()
}

var peakLine = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// peakMemory returns the largest resident memory of the service so far, in bytes.
func (s *service) peakMemory() int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	require.NoError(s.t, err)
	m := peakLine.FindSubmatch(data)
	require.NotNil(s.t, m, string(data))
	kib, err := strconv.ParseInt(string(m[1]), 10, 64)
	require.NoError(s.t, err)
	return kib << 10
}

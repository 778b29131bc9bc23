package page_test

import (
	"bytes"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
)

// service is a running rls.
type service struct {
	t     *testing.T
	cmd   *exec.Cmd
	http  string // address of /json
	debug string // address of the live page

	mu     sync.Mutex
	output bytes.Buffer
}

var listening = regexp.MustCompile(`msg=listening .*http=(\S+) debug=(\S+)`)

// startService runs rls on free ports.
func startService(t *testing.T, limits string, env ...string) *service {
	t.Helper()
	s := &service{t: t, cmd: exec.Command(rlsBin, "serve", "--limits", limits)}
	s.cmd.Env = append([]string{
		"GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "HOST=127.0.0.1", "PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0", "SOURCE_POLL_INTERVAL=200ms",
	}, env...)
	s.cmd.Stdout, s.cmd.Stderr = s, s
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			t.Logf("output of rls:\n%s", s.text())
		}
	})
	polltest.Until(t, maxWait, func() bool {
		m := listening.FindStringSubmatch(s.text())
		if m != nil {
			s.http, s.debug = "http://"+m[1], "http://"+m[2]
		}
		return m != nil
	}, "listeners")
	return s
}

// Write appends to the output of the process.
func (s *service) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.output.Write(text)
}

func (s *service) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.output.String()
}

// kill ends the process at once.
func (s *service) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

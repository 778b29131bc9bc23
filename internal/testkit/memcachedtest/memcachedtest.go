// Package memcachedtest runs real memcached servers for tests. They listen on free loopback ports, and
// end with the test process. Without memcached on the PATH, tests fail.
package memcachedtest

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/proctest"
)

// Server is a running memcached.
type Server struct {
	Addr string // host:port on the loopback

	port     string
	settings []string
	tls      *tls.Config // the configuration of clients; nil for plain connections

	mu     sync.Mutex // guards the fields below
	cmd    *exec.Cmd  // nil if the server has been killed
	exited chan struct{}
}

// startTimeout is a timeout for the start of a server, even on a busy machine.
const startTimeout = 20 * time.Second

// Start runs a memcached and stops it when the test ends.
func Start(tb testing.TB) *Server {
	tb.Helper()
	return start(tb, nil)
}

// StartTLS is Start for a server with a certificate. conf is the configuration of clients.
func StartTLS(tb testing.TB, certFile, keyFile string, conf *tls.Config) *Server {
	tb.Helper()
	return start(tb, conf, "-Z", "-o", "ssl_chain_cert="+certFile+",ssl_key="+keyFile)
}

func start(tb testing.TB, conf *tls.Config, settings ...string) *Server {
	tb.Helper()
	port, err := proctest.FreePort()
	require.NoError(tb, err)
	s := &Server{port: strconv.Itoa(port), settings: settings, tls: conf}
	s.Addr = net.JoinHostPort("127.0.0.1", s.port)
	s.spawn(tb)
	tb.Cleanup(s.Kill)
	return s
}

func (s *Server) spawn(tb testing.TB) {
	tb.Helper()
	path, err := exec.LookPath("memcached")
	require.NoError(tb, err, "install memcached (apt-get install memcached)")
	currentUser, err := user.Current()
	require.NoError(tb, err)
	s.mu.Lock()
	s.cmd = exec.Command(path, append([]string{"-l", "127.0.0.1", "-p", s.port, "-U", "0", "-u", currentUser.Username, "-t", "1", "-m", "64"}, s.settings...)...)
	s.exited = make(chan struct{})
	cmd, exited := s.cmd, s.exited
	err = proctest.Start(cmd)
	s.mu.Unlock()
	require.NoError(tb, err)
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	polltest.Until(tb, startTimeout, func() bool {
		answer, err := s.ask("stats", "END")
		return err == nil && strings.Contains(answer, fmt.Sprintf("STAT pid %d\n", cmd.Process.Pid))
	})
}

// Kill ends the server as a crash would. It does nothing if the server has ended.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		<-s.exited
		s.cmd = nil
	}
}

// Restart kills the server and starts it empty on the same port.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.Kill()
	s.spawn(tb)
}

// Pause freezes the server. Connections stay open, and the server answers nothing.
func (s *Server) Pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		proctest.Pause(s.cmd.Process)
	}
}

// Resume ends a Pause.
func (s *Server) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		_ = s.cmd.Process.Signal(syscall.SIGCONT)
	}
}

// Get returns the value of a key, or an empty string.
func (s *Server) Get(tb testing.TB, key string) string {
	tb.Helper()
	answer, err := s.ask("get "+key, "END")
	require.NoError(tb, err)
	_, value, _ := strings.Cut(answer, "\n")
	value, _, _ = strings.Cut(value, "\n")
	return value
}

// Set stores a value that never expires.
func (s *Server) Set(tb testing.TB, key, value string) {
	tb.Helper()
	_, err := s.ask(fmt.Sprintf("set %s 0 0 %d\r\n%s", key, len(value), value), "STORED")
	require.NoError(tb, err)
}

// Keys returns the remaining time of each key in seconds, or -1 for a key that never expires.
func (s *Server) Keys(tb testing.TB) map[string]int64 {
	tb.Helper()
	var answer string
	polltest.Until(tb, startTimeout, func() bool { // the server's own crawler may be at work
		var err error
		answer, err = s.ask("lru_crawler metadump all", "END")
		require.NoError(tb, err)
		return !strings.HasPrefix(answer, busyPrefix)
	})
	keys := map[string]int64{}
	for line := range strings.Lines(answer) {
		var key string
		var expiry int64
		if n, _ := fmt.Sscanf(line, "key=%s exp=%d", &key, &expiry); n == 2 {
			if expiry >= 0 {
				expiry = max(expiry-time.Now().Unix(), 0)
			}
			name, err := url.QueryUnescape(key)
			require.NoError(tb, err)
			keys[name] = expiry
		}
	}
	return keys
}

// busyPrefix is the start of the answer if another command already crawls the keys.
const busyPrefix = "BUSY "

// ask sends a command over a new connection. It returns the lines before lastLine, or the line
// that says that the server is busy.
func (s *Server) ask(command, lastLine string) (string, error) {
	conn, err := net.Dial("tcp", s.Addr)
	if err != nil {
		return "", err
	}
	if s.tls != nil {
		conn = tls.Client(conn, s.tls)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(startTimeout)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(conn, "%s\r\n", command); err != nil {
		return "", err
	}
	var text strings.Builder
	scanner := bufio.NewScanner(conn)
	for scanner.Scan() {
		if scanner.Text() == lastLine {
			return text.String(), nil
		}
		text.WriteString(scanner.Text() + "\n")
		if strings.HasPrefix(scanner.Text(), busyPrefix) {
			return text.String(), nil
		}
	}
	return "", fmt.Errorf("%s: no line %s in the answer %q: %w", command, lastLine, text.String(), scanner.Err())
}

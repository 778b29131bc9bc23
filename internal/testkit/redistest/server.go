// Package redistest runs real Redis servers for tests. Open returns a share of one server that
// all tests of a process use. Start, StartTLS, StartSentinels and StartCluster run servers
// for one test. The servers listen on free loopback ports and keep nothing on disk. They end
// with the test process, even if it is killed. Without redis-server on the PATH, tests fail.
// RLS_TEST_REDIS_SERVER is the path of another server, such as Redis 6.2 or Valkey. Servers with TLS are
// always the redis-server of the PATH, because many builds of other servers have no TLS.
//
// At the end of each test, no counter of rls may lack a time to live. If a test writes the key of a
// counter itself, it must give the key a time to live.
package redistest

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/internal/testkit/proctest"
)

// Server is a running Redis server or sentinel.
type Server struct {
	// Addr is host:port on the loopback.
	Addr string

	busPort int // the port for other nodes of a Cluster

	binary string
	args   []string
	tls    *tls.Config // the configuration of clients; nil for plain connections

	mu      sync.Mutex // guards the fields below
	process *os.Process
	exited  chan struct{}
	output  *safeBuffer
}

// ProgramEnv is the environment variable with the path of another server.
const ProgramEnv = "RLS_TEST_REDIS_SERVER"

// Start runs a redis-server and stops it when the test ends. The settings are arguments of the
// command line, such as "--maxmemory", "1mb".
func Start(tb testing.TB, settings ...string) *Server {
	tb.Helper()
	s, err := startAnywhere(append([]string{"--dir", tb.TempDir()}, settings...)...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.end(tb) })
	return s
}

// StartReplica runs a replica of s. It does not wait until the replica has the data of s.
func (s *Server) StartReplica(tb testing.TB) *Server {
	tb.Helper()
	host, port, _ := strings.Cut(s.Addr, ":")
	return Start(tb, "--replicaof", host, port)
}

// end checks the counters of the server and kills it.
func (s *Server) end(tb testing.TB) {
	checkCounters(tb, s, "")
	s.Kill()
}

func startAnywhere(settings ...string) (*Server, error) {
	return onFreePort(func(port int) (*Server, error) {
		return run(port, nil, settings...)
	})
}

// onFreePort starts a server on a free port. It tries several ports, because another process can
// take a free port first.
func onFreePort(start func(port int) (*Server, error)) (s *Server, err error) {
	for range 5 {
		var port int
		if port, err = proctest.FreePort(); err != nil {
			return nil, err
		}
		if s, err = start(port); err == nil {
			return s, nil
		}
	}
	return nil, err
}

// program returns the program of servers, by its name or path.
func program(hasTLS bool) string {
	if path := os.Getenv(ProgramEnv); path != "" && !hasTLS {
		return path
	}
	return "redis-server"
}

// isRedis6 reports whether servers without TLS are Redis 6, which lacks some settings.
var isRedis6 = sync.OnceValue(func() bool {
	version, err := exec.Command(program(false), "--version").Output()
	return err == nil && strings.Contains(string(version), "Redis server v=6.")
})

// run starts a server or a sentinel on port and waits until it answers. conf secures the connection of the
// check; nil means a plain connection.
func run(port int, conf *tls.Config, settings ...string) (*Server, error) {
	binary := program(conf != nil)
	path, err := exec.LookPath(binary)
	if err != nil {
		return nil, fmt.Errorf("%s is needed for this test; install Redis (apt-get install redis-server): %w", binary, err)
	}
	newServer := &Server{
		Addr:   net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		binary: path,
		tls:    conf,
	}
	if !slices.Contains(settings, "--sentinel") {
		newServer.args = []string{
			"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
			"--dir", os.TempDir(), "--dbfilename", "rls-test.rdb", "--repl-diskless-sync-delay", "0",
		}
		if conf != nil || !isRedis6() {
			newServer.args = append(newServer.args, "--enable-debug-command", "yes")
		}
	}
	newServer.args = append(newServer.args, settings...)
	if err := newServer.spawn(); err != nil {
		return nil, err
	}
	return newServer, nil
}

// Kill ends the server as a crash would. It does nothing if the server has ended.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		s.process.Signal(syscall.SIGCONT)
		s.process.Kill()
		<-s.exited
		s.process = nil
	}
}

// Restart kills the server and starts it empty on the same port. If another process uses the
// port, Restart waits.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.Kill()
	if err := eventually(startTimeout, func(context.Context) error { return s.spawn() }); err != nil {
		tb.Fatal(err)
	}
}

// startTimeout is a timeout for the start of a server, even on a busy machine.
const startTimeout = 20 * time.Second

// Pause freezes the server. Connections stay open, and the server answers nothing.
func (s *Server) Pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		proctest.Pause(s.process)
	}
}

// Resume ends a Pause.
func (s *Server) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		s.process.Signal(syscall.SIGCONT)
	}
}

// PID returns the process ID of the server, or 0 if it is not running.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return 0
	}
	return s.process.Pid
}

// Client returns a client of the server that is closed when the test ends.
func (s *Server) Client(tb testing.TB) *goredis.Client {
	c := goredis.NewClient(&goredis.Options{Addr: s.Addr, TLSConfig: s.tls})
	tb.Cleanup(func() { c.Close() })
	return c
}

// AwaitReplica waits until a replica has everything that was written to the server so far.
func (s *Server) AwaitReplica(tb testing.TB) {
	tb.Helper()
	writtenOffset := -1
	err := eventually(20*time.Second, func(ctx context.Context) error {
		info, err := s.command(ctx, "INFO", "replication")
		if err != nil {
			return err
		}
		if writtenOffset < 0 {
			writtenOffset = numberAfter(info, "master_repl_offset:")
		}
		if numberAfter(info, "state=online,offset=") < writtenOffset {
			return fmt.Errorf("no replica has what was written until %d:\n%s", writtenOffset, info)
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// numberAfter returns the number after the first name in text, or -1.
func numberAfter(text, name string) int {
	_, textAfterName, _ := strings.Cut(text, name)
	digits := strings.IndexFunc(textAfterName, func(r rune) bool { return r < '0' || r > '9' })
	n, err := strconv.Atoi(textAfterName[:max(digits, 0)])
	if err != nil {
		return -1
	}
	return n
}

// newClient returns a client that the caller must close. It repeats nothing.
func (s *Server) newClient() *goredis.Client {
	return goredis.NewClient(&goredis.Options{Addr: s.Addr, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true, TLSConfig: s.tls})
}

// command sends a command over a new connection.
func (s *Server) command(ctx context.Context, args ...any) (string, error) {
	c := s.newClient()
	defer c.Close()
	return c.Do(ctx, args...).Text()
}

// answers returns nil if the server with this process ID answers, and not another server on the
// same port.
func (s *Server) answers(ctx context.Context, pid int) error {
	if _, err := s.command(ctx, "PING"); err != nil {
		return err
	}
	info, err := s.command(ctx, "INFO", "server")
	if err == nil && numberAfter(info, "process_id:") != pid {
		return fmt.Errorf("port of %s: got another server", s.Addr)
	}
	return err
}

func (s *Server) spawn() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.output = &safeBuffer{}
	cmd := exec.Command(s.binary, s.args...)
	cmd.Stdout, cmd.Stderr = s.output, s.output
	if err := proctest.Start(cmd); err != nil {
		return fmt.Errorf("start %s: %w", s.binary, err)
	}
	s.process = cmd.Process
	exited := make(chan struct{})
	s.exited = exited
	go func() {
		cmd.Wait()
		close(exited)
	}()
	err := eventually(startTimeout, func(ctx context.Context) error {
		select {
		case <-exited:
			return errExited
		default:
			return s.answers(ctx, cmd.Process.Pid)
		}
	})
	if err != nil {
		cmd.Process.Kill()
		<-exited
		s.process = nil
		return fmt.Errorf("%s did not start: %w; its output:\n%s", s.binary, err, s.output)
	}
	return nil
}

var errExited = fmt.Errorf("it exited")

// eventually calls f until f returns nil or the timeout is over.
func eventually(timeout time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil || err == errExited {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// safeBuffer is a bytes.Buffer that can be written and read at once.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

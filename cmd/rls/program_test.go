package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// programEnv is a variable that makes the test binary run the program, so that tests run
// what users run.
const programEnv = "RLS_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		os.Exit(run(os.Args))
	}
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // tests mostly wait for their services
	os.Exit(m.Run())
}

// command returns the program as a child process whose environment is env. GORACE saves
// the second that a program built with -race sleeps at its end.
func command(t *testing.T, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(env, programEnv+"=1", "GORACE=atexit_sleep_ms=0")
	return cmd
}

// maxWait is how long tests wait for events, even on a busy machine.
const maxWait = 30 * time.Second

// rls runs the program to its end. By default a hit waits up to maxWait for its answer.
func rls(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	if args[0] == "hit" && !slices.Contains(args, "--timeout") {
		args = append(slices.Clip(args), "--timeout", maxWait.String())
	}
	cmd := command(t, nil, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// testService is a service that runs as a child process.
type testService struct {
	t                 *testing.T
	cmd               *exec.Cmd
	grpc, http, debug string
	done              chan struct{}
	err               error // the error of Wait; set when done is closed

	mu  sync.Mutex
	log bytes.Buffer
}

var listeningLine = regexp.MustCompile(`msg=listening grpc=(\S+) http=(\S+) debug=(\S+)`)

// start runs rls serve on free ports and returns when it listens.
func start(t *testing.T, env []string, args ...string) *testService {
	t.Helper()
	return startAs(t, os.Args[0], env, append([]string{"serve"}, args...)...)
}

// startAs runs the program under a name on free ports and returns when it listens.
func startAs(t *testing.T, name string, env []string, args ...string) *testService {
	t.Helper()
	return startProgram(t, name, nil, env, args...)
}

// startProgram does the same as startAs, and the program writes to stdout.
func startProgram(t *testing.T, name string, stdout io.Writer, env []string, args ...string) *testService {
	t.Helper()
	env = append([]string{
		"GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "HOST=127.0.0.1", "PORT=0", "DEBUG_PORT=0",
		"SOURCE_POLL_INTERVAL=100ms", "DRAIN_DELAY=0s",
	}, env...)
	service := &testService{t: t, cmd: command(t, env, args...), done: make(chan struct{})}
	service.cmd.Args[0], service.cmd.Stdout = name, stdout
	stderr, err := service.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, service.cmd.Start())
	addresses := make(chan []string, 1)
	go func() {
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			service.mu.Lock()
			service.log.WriteString(lines.Text() + "\n")
			service.mu.Unlock()
			if m := listeningLine.FindStringSubmatch(lines.Text()); m != nil {
				addresses <- m
			}
		}
		service.err = service.cmd.Wait()
		close(service.done)
	}()
	t.Cleanup(func() {
		_ = service.cmd.Process.Kill()
		<-service.done
		if t.Failed() {
			t.Logf("the service's log:\n%s", service.logText())
		}
	})
	select {
	case m := <-addresses:
		service.grpc, service.http, service.debug = m[1], m[2], m[3]
	case <-service.done:
		require.FailNow(t, "the service ended", "%v\n%s", service.err, service.logText())
	case <-time.After(maxWait):
		require.FailNow(t, "the service doesn't listen", service.logText())
	}
	return service
}

// logText returns what the service has logged.
func (r *testService) logText() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

// stop sends SIGTERM and waits until the service ends.
func (r *testService) stop() error {
	require.NoError(r.t, r.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-r.done:
	case <-time.After(maxWait):
		require.FailNow(r.t, "SIGTERM didn't end the service")
	}
	return r.err
}

// writeFile writes a file into a new directory and returns its path.
func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

package main

import (
	"bufio"
	"bytes"
	"errors"
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

// programEnv makes this test binary the program itself, so that tests run what
// users run.
const programEnv = "RLS_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		os.Exit(run(os.Args))
	}
	os.Exit(m.Run())
}

// command is the program as a child process, with nothing in its environment but
// env. Built with -race it would sleep for a second at its end.
func command(t *testing.T, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(env, programEnv+"=1", "GORACE=atexit_sleep_ms=0")
	return cmd
}

// ample is time enough for what must come, on a machine with much to do.
const ample = 30 * time.Second

// rls runs the program to its end. A hit that doesn't say how long it waits does so for
// an ample time.
func rls(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	if args[0] == "hit" && !slices.Contains(args, "--timeout") {
		args = append(slices.Clip(args), "--timeout", ample.String())
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

// running is a service under test.
type running struct {
	t                 *testing.T
	cmd               *exec.Cmd
	grpc, http, debug string
	done              chan struct{}
	err               error // of Wait, once done

	mu  sync.Mutex
	log bytes.Buffer
}

var listening = regexp.MustCompile(`msg=listening grpc=(\S+) http=(\S+) debug=(\S+)`)

// start runs rls serve on free ports until it listens.
func start(t *testing.T, env []string, args ...string) *running {
	t.Helper()
	return startAs(t, os.Args[0], env, append([]string{"serve"}, args...)...)
}

// startAs runs the program under that name, on free ports, until it listens.
func startAs(t *testing.T, name string, env []string, args ...string) *running {
	t.Helper()
	env = append([]string{
		"GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "HOST=127.0.0.1", "PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
	}, env...)
	r := &running{t: t, cmd: command(t, env, args...), done: make(chan struct{})}
	r.cmd.Args[0] = name
	stderr, err := r.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, r.cmd.Start())
	up := make(chan []string, 1)
	go func() {
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			r.mu.Lock()
			r.log.WriteString(lines.Text() + "\n")
			r.mu.Unlock()
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				up <- m
			}
		}
		r.err = r.cmd.Wait()
		close(r.done)
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		<-r.done
		if t.Failed() {
			t.Logf("the service's log:\n%s", r.logged())
		}
	})
	select {
	case m := <-up:
		r.grpc, r.http, r.debug = m[1], m[2], m[3]
	case <-r.done:
		require.FailNow(t, "the service ended", "%v\n%s", r.err, r.logged())
	case <-time.After(ample):
		require.FailNow(t, "the service doesn't listen", r.logged())
	}
	return r
}

func (r *running) logged() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

// stop sends SIGTERM and waits for the end.
func (r *running) stop() error {
	require.NoError(r.t, r.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-r.done:
	case <-time.After(ample):
		require.FailNow(r.t, "SIGTERM didn't end the service")
	}
	return r.err
}

// file writes a file into a folder of the test's own.
func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

//go:build e2e

package e2e_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// process is a child that ends with its test, or with this process.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}

	mu     sync.Mutex
	output bytes.Buffer
}

func start(t *testing.T, env []string, bin string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(bin, args...), done: make(chan struct{})}
	p.cmd.Env = env
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, onOneThread(p.cmd.Start))
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s said:\n%s", bin, p.said())
		}
	})
	return p
}

// Write takes what the process says.
func (p *process) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.Write(text)
}

func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// kill ends the process as a crash would.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// freeze has the process do nothing more, and waits until all its threads have
// stopped.
func (p *process) freeze() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGSTOP))
	p.await("standstill", func() bool {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		for _, thread := range threads {
			stat, _ := os.ReadFile(thread)
			if _, state, _ := bytes.Cut(stat, []byte(") ")); !bytes.HasPrefix(state, []byte("T")) {
				return false
			}
		}
		return len(threads) > 0
	})
}

// stop ends the process as a deployment would, and waits until it has ended.
func (p *process) stop() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		require.FailNow(p.t, "SIGTERM didn't end it", p.said())
	}
}

// await polls until ok, or until the process has ended.
func (p *process) await(what string, ok func() bool) {
	p.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		select {
		case <-p.done:
			require.FailNow(p.t, "it ended before "+what, p.said())
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			require.FailNow(p.t, "no "+what, p.said())
		}
	}
}

// onOneThread runs f on a thread that lives as long as this process: a child with
// Pdeathsig is killed when the thread that started it ends.
func onOneThread(f func() error) error {
	starter.Do(func() {
		go func() {
			runtime.LockOSThread()
			for f := range starts {
				f()
			}
		}()
	})
	err := make(chan error)
	starts <- func() { err <- f() }
	return <-err
}

var (
	starter sync.Once
	starts  = make(chan func())
)

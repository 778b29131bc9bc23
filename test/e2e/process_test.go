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

// process is a child process. It ends when its test ends or this process ends.
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
			t.Logf("output of %s:\n%s", bin, p.text())
		}
	})
	return p
}

// Write appends to the output of the process.
func (p *process) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.Write(text)
}

// text returns the output so far.
func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// kill ends the process at once, like a crash.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// freeze stops all threads of the process and waits until they have stopped.
func (p *process) freeze() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGSTOP))
	p.await("all threads stopped", func() bool {
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

// terminate sends SIGTERM, as a deployment does.
func (p *process) terminate() error { return p.cmd.Process.Signal(syscall.SIGTERM) }

// await polls until the condition is true. It fails the test if the process ends first.
func (p *process) await(what string, condition func() bool) {
	p.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !condition() {
		select {
		case <-p.done:
			require.FailNow(p.t, "process ended before "+what, p.text())
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			require.FailNow(p.t, "no "+what, p.text())
		}
	}
}

// onOneThread runs f on a thread that lives as long as this process. Pdeathsig kills a
// child when the thread that started it ends.
func onOneThread(f func() error) error {
	threadOnce.Do(func() {
		go func() {
			runtime.LockOSThread()
			for f := range threadJobs {
				f()
			}
		}()
	})
	err := make(chan error)
	threadJobs <- func() { err <- f() }
	return <-err
}

var (
	threadOnce sync.Once
	threadJobs = make(chan func())
)

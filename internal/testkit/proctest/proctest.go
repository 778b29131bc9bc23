// Package proctest starts servers for tests on free ports.
package proctest

import (
	"math/rand/v2"
	"net"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"

	"go.uber.org/goleak"
)

// Start starts cmd, which ends with this process, even if this process is killed. Linux kills a child with
// Pdeathsig when the thread that started it ends. So Start uses a thread that lives as long as the process.
func Start(cmd *exec.Cmd) error {
	startOnce.Do(func() {
		go func() {
			runtime.LockOSThread()
			for f := range starts {
				f()
			}
		}()
	})
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	done := make(chan error)
	starts <- func() { done <- cmd.Start() }
	return <-done
}

var (
	startOnce sync.Once
	starts    = make(chan func())
)

// IgnoreStarter returns the option of goleak for the goroutine of Start.
func IgnoreStarter() goleak.Option {
	return goleak.IgnoreAnyFunction("github.com/seed-81f232ab/rls/internal/testkit/proctest.Start.func1.1")
}

// FreePort returns a port below the ports that Linux gives to clients. Otherwise a client could
// take the port of a killed server before its restart.
func FreePort() (port int, err error) {
	for range 20 {
		port = 12_000 + rand.IntN(20_000)
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, err
}

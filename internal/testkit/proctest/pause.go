package proctest

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"time"
)

// Pause stops p until it gets SIGCONT. It returns when p stands still, because a process can work on for a moment
// after the signal. Errors are ignored: p may have ended.
func Pause(p *os.Process) {
	if p.Signal(syscall.SIGSTOP) != nil {
		return
	}
	for range 1000 {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid))
		_, state, _ := bytes.Cut(stat, []byte(") ")) // the name of the program comes before the state
		if err != nil || bytes.HasPrefix(state, []byte("T")) {
			return // p stands still or has ended, or there is no /proc
		}
		time.Sleep(time.Millisecond)
	}
}

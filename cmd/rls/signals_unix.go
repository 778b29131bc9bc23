//go:build unix

package main

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/term"
)

// signalsForCommand returns the signals that the command of rls acquire gets. A terminal sends SIGINT
// and SIGQUIT to the command by itself.
func signalsForCommand() []os.Signal {
	signals := []os.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT}
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		signals = append(signals, syscall.SIGINT, syscall.SIGQUIT)
	}
	return signals
}

func cpuTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // an error leaves zeros
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

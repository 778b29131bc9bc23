//go:build unix

package main

import (
	"os"
	"syscall"

	"golang.org/x/term"
)

// passedSignals returns the signals that the command of rls acquire gets. A terminal sends SIGINT
// and SIGQUIT to the command by itself.
func passedSignals() []os.Signal {
	signals := []os.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT}
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		signals = append(signals, syscall.SIGINT, syscall.SIGQUIT)
	}
	return signals
}

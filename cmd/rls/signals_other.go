//go:build !unix

package main

import (
	"os"
	"time"
)

// signalsForCommand returns the signals that the command of rls acquire gets.
func signalsForCommand() []os.Signal { return []os.Signal{os.Interrupt} }

// cpuTime is unknown on this system.
func cpuTime() time.Duration { return 0 }

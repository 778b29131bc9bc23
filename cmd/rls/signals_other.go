//go:build !unix

package main

import "os"

// passedSignals returns the signals that the command of rls acquire gets.
func passedSignals() []os.Signal { return []os.Signal{os.Interrupt} }

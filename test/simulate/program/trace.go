package main

import (
	"bufio"
	"fmt"
	"os"
	"time"
)

// output is the trace of the run. Its hash names the run.
var output = bufio.NewWriterSize(os.Stdout, 64<<10)

var startTime = time.Now()

// elapsed returns the time since the start of the program.
func elapsed() time.Duration { return time.Since(startTime) }

// sleepUntil sleeps until a time since the start of the program.
func sleepUntil(t time.Duration) { time.Sleep(t - elapsed()) }

// logf writes an event with its time to the trace.
func logf(format string, args ...any) {
	fmt.Fprintf(output, "%10.6f ", elapsed().Seconds())
	fmt.Fprintf(output, format, args...)
	_ = output.WriteByte('\n')
}

func flush() { _ = output.Flush() }

package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestGoroutinesEndBeforeAnythingCloses(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	process := newProcess(ctx)
	var steps []string
	process.addCloser(func() { steps = append(steps, "first closed") })
	process.addCloser(func() { steps = append(steps, "second closed") })
	startSignal := make(chan bool)
	process.start(func(ctx context.Context) {
		close(startSignal)
		<-ctx.Done()
		steps = append(steps, "goroutine ended")
	})
	<-startSignal
	cancel()
	assert.NoError(t, process.ctx.Err(), "calls in flight need the process after a signal to stop")
	process.end()
	assert.Equal(t, []string{"goroutine ended", "second closed", "first closed"}, steps)
}

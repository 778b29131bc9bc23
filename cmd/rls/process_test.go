package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestGoroutinesEndBeforeAnythingCloses(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	p := newProcess(ctx)
	var steps []string
	p.addCloser(func() { steps = append(steps, "first closed") })
	p.addCloser(func() { steps = append(steps, "second closed") })
	started := make(chan bool)
	p.start(func(ctx context.Context) {
		close(started)
		<-ctx.Done()
		steps = append(steps, "goroutine ended")
	})
	<-started
	cancel()
	assert.NoError(t, p.ctx.Err(), "calls in flight need the process after a signal to stop")
	p.end()
	assert.Equal(t, []string{"goroutine ended", "second closed", "first closed"}, steps)
}

package server

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCallCounterCountsCallsInFlight(t *testing.T) {
	var f callCounter
	var callers sync.WaitGroup
	for range 100 {
		callers.Go(func() {
			for range 100 {
				f.beginCall()
				f.endCall()
			}
			f.beginCall()
		})
	}
	callers.Wait()
	assert.EqualValues(t, 100, f.inFlight.Load())
	assert.EqualValues(t, 100*101, f.total.Load())
	for range 100 {
		f.endCall()
	}
	assert.Zero(t, f.inFlight.Load())
}

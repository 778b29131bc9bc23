package server

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCallCounterCountsCallsInFlight(t *testing.T) {
	var counter callCounter
	var callers sync.WaitGroup
	for range 100 {
		callers.Go(func() {
			for range 100 {
				counter.beginCall()
				counter.endCall()
			}
			counter.beginCall()
		})
	}
	callers.Wait()
	assert.EqualValues(t, 100, counter.inFlight.Load())
	assert.EqualValues(t, 100*101, counter.total.Load())
	for range 100 {
		counter.endCall()
	}
	assert.Zero(t, counter.inFlight.Load())
}

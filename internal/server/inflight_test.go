package server

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestInflightCountsCalls(t *testing.T) {
	var f callCounter
	var calling sync.WaitGroup
	for range 100 {
		calling.Go(func() {
			for range 100 {
				f.beginCall()
				f.endCall()
			}
			f.beginCall()
		})
	}
	calling.Wait()
	assert.EqualValues(t, 100, f.inFlight.Load())
	assert.EqualValues(t, 100*101, f.total.Load())
	for range 100 {
		f.endCall()
	}
	assert.Zero(t, f.inFlight.Load())
}

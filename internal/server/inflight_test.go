package server

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestInflightCountsCalls(t *testing.T) {
	var f inflight
	var calling sync.WaitGroup
	for range 100 {
		calling.Go(func() {
			for range 100 {
				f.begin()
				f.end()
			}
			f.begin()
		})
	}
	calling.Wait()
	assert.EqualValues(t, 100, f.calls.Load())
	assert.EqualValues(t, 100*101, f.begun.Load())
	for range 100 {
		f.end()
	}
	assert.Zero(t, f.calls.Load())
}

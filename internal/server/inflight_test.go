package server

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestInflightCountsCalls(t *testing.T) {
	var f inflight
	for i := range f { // the counts of all calls start again from 0 after 2^32 calls
		f[i].calls.Store(oneBegun * (oneBegun - 10))
	}
	before := f.begun()
	var open []uint32
	var mu sync.Mutex
	var calling sync.WaitGroup
	for range 100 {
		calling.Go(func() {
			for range 100 {
				f.end(f.begin())
			}
			part := f.begin()
			mu.Lock()
			defer mu.Unlock()
			open = append(open, part)
		})
	}
	calling.Wait()
	assert.EqualValues(t, 100, f.count())
	assert.EqualValues(t, 100*101, f.begun()-before)
	for _, part := range open {
		f.end(part)
	}
	assert.Zero(t, f.count())
}

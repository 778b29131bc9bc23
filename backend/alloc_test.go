//go:build !race

// The race detector empties pools at random, so allocations are counted without it.

package backend

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestReusedSubBatchDoesNotAllocate(t *testing.T) {
	key, results := []byte("key"), make([]Result, 9)
	nextLimiter := nopLimiter{}
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		s := NewSubBatch()
		for i := range results {
			s.AddWithPrefix("own:", i, Hit{Key: key})
		}
		s.Take(context.Background(), time.Time{}, nextLimiter)
		s.CopyResults(results)
		s.Release()
	}))
}

type nopLimiter struct{}

func (nopLimiter) Take(context.Context, time.Time, []Hit, []Result) {}

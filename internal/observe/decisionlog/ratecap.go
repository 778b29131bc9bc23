package decisionlog

import (
	"sync/atomic"
	"time"
)

// rateCap bounds records in each second of the clock. It takes one atomic operation for
// each record, and no lock.
type rateCap struct {
	max uint64 // 0 means no bound

	// state has the second in its upper half and the records of this second in its lower
	// half, with the refused records.
	state atomic.Uint64

	refusedBefore atomic.Uint64 // refused records of earlier seconds
}

// allow counts a record and reports whether it is within the bound.
func (c *rateCap) allow(now time.Time) bool {
	if c.max == 0 {
		return true
	}
	c.beginSecond(now)
	return uint64(uint32(c.state.Add(1))) <= c.max
}

// beginSecond starts to count from 0 if now is in a later second than the last record, or if the
// clock went back. Calls that end together can be a little out of order.
func (c *rateCap) beginSecond(now time.Time) {
	const maxDisorder = 2 // seconds
	second := uint32(now.Unix())
	for {
		state := c.state.Load()
		if age := int32(uint32(state>>32) - second); 0 <= age && age <= maxDisorder {
			return
		}
		if c.state.CompareAndSwap(state, uint64(second)<<32) {
			c.refusedBefore.Add(c.refusedIn(state))
			return
		}
	}
}

// refusedIn returns the refused records of a state.
func (c *rateCap) refusedIn(state uint64) uint64 {
	count := uint64(uint32(state))
	return count - min(count, c.max)
}

// refusedCount returns the number of all refused records.
func (c *rateCap) refusedCount(now time.Time) uint64 {
	if c.max == 0 {
		return 0
	}
	c.beginSecond(now)
	return c.refusedBefore.Load() + c.refusedIn(c.state.Load())
}

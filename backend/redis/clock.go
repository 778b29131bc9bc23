package redis

import (
	"sync"
	"sync/atomic"
	"time"
)

// serverClock is the clock of a Redis server, estimated by this process. It adds an offset
// to the time since the start of the process, so changes of this machine's clock have no
// effect. A new serverClock must be measured before use. It is safe for concurrent use.
//
// A measurement is a TIME command. The server has read its clock between the start and the end of the
// command. So the error is at most the length of the command. The estimate is the middle of the
// shortest of the last measurements.
type serverClock struct {
	offset     atomic.Int64 // microseconds from the time since processStart to the server's time
	measuredAt atomic.Int64 // time of the last measurement, in microseconds since processStart, or 0

	mu           sync.Mutex // guards the field below
	measurements []measurement
}

// measurement is a range that contains the offset, in microseconds.
type measurement struct{ minOffset, maxOffset int64 }

const (
	// maxMeasurements is the number of measurements from which the shortest is chosen.
	maxMeasurements = 8

	// measureInterval is the time in microseconds after which a busy clock is measured again.
	measureInterval = 2 * microsPerSecond

	// maxClockAge is the time in microseconds after which a clock must be measured before
	// its next use. Two clocks of machines drift apart by some microseconds in a second.
	maxClockAge = 60 * microsPerSecond

	// maxDrift is the maximum drift in microseconds between two measurements. If two measurements
	// differ more, somebody has set the server's clock.
	maxDrift = 2000
)

var processStart = time.Now()

// microsSinceProcessStart returns the time since processStart in microseconds. It is never 0.
func microsSinceProcessStart() int64 { return time.Since(processStart).Microseconds() + 1 }

// now returns the time of the server in microseconds since 1970.
func (c *serverClock) now() int64 { return microsSinceProcessStart() + c.offset.Load() }

// isDue reports whether the clock should be measured again.
func (c *serverClock) isDue() bool {
	return microsSinceProcessStart()-c.measuredAt.Load() >= measureInterval
}

// isUsable reports whether the clock has been measured within maxClockAge.
func (c *serverClock) isUsable() bool {
	measuredAt := c.measuredAt.Load()
	return measuredAt != 0 && microsSinceProcessStart()-measuredAt < maxClockAge
}

// expire makes isUsable false until the next measurement. Callers that already use the clock keep the
// offset.
func (c *serverClock) expire() { c.measuredAt.Store(0) }

// measureSoon makes isDue true until the next measurement.
func (c *serverClock) measureSoon() { c.measuredAt.Add(-measureInterval) }

// add adds a measurement. The server has reported the time serverMicros between start and end,
// which are results of microsSinceProcessStart.
func (c *serverClock) add(start, end, serverMicros int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	newest := measurement{serverMicros - end, serverMicros - start}
	for _, m := range c.measurements {
		if newest.minOffset > m.maxOffset+maxDrift || newest.maxOffset < m.minOffset-maxDrift {
			c.measurements = c.measurements[:0] // somebody has set the server's clock
			break
		}
	}
	if len(c.measurements) == maxMeasurements {
		copy(c.measurements, c.measurements[1:])
		c.measurements = c.measurements[:maxMeasurements-1]
	}
	c.measurements = append(c.measurements, newest)
	shortest := newest
	for _, m := range c.measurements {
		if m.maxOffset-m.minOffset < shortest.maxOffset-shortest.minOffset {
			shortest = m
		}
	}
	c.offset.Store(shortest.minOffset + (shortest.maxOffset-shortest.minOffset)/2)
	c.measuredAt.Store(end)
}

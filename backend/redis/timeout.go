package redis

import (
	"context"
	"time"
)

const (
	// defaultTimeout is the default of Options.Timeout, and the least timeout of AutoTimeout.
	defaultTimeout = 50 * time.Millisecond

	// maxAutoTimeout is the largest timeout of AutoTimeout.
	maxAutoTimeout = 500 * time.Millisecond

	// tripsInTimeout is the number of round trips that a timeout needs. A hit waits for the batch
	// before it, for its own batch, and for a repeated command or a redirect.
	tripsInTimeout = 3
)

// neededTimeout returns the least timeout for this round trip, in steps of 10 ms.
func neededTimeout(roundTrip time.Duration) time.Duration {
	const step = 10 * time.Millisecond
	return max((tripsInTimeout*roundTrip + step - 1).Truncate(step), step)
}

// isTooShort reports whether timeout is shorter than two round trips. A hit can wait for the batch
// before its own.
func isTooShort(timeout, roundTrip time.Duration) bool { return timeout < 2*roundTrip }

// Timeout returns the budget of a Take. With Options.AutoTimeout, a longer RoundTrip means a longer
// Timeout.
func (l *Limiter) Timeout() time.Duration {
	if !l.options.AutoTimeout {
		return l.options.Timeout
	}
	return time.Duration(l.autoTimeout.Load())
}

// adaptTimeout sets the timeout of AutoTimeout after a measurement.
func (l *Limiter) adaptTimeout() {
	if l.options.AutoTimeout {
		l.autoTimeout.Store(int64(min(max(neededTimeout(l.RoundTrip()), defaultTimeout), maxAutoTimeout)))
	}
}

// RoundTrip returns the time of a round trip to the slowest of all servers, or 0 if none has been
// measured. For each server, it takes the shortest of the last eight round trips. So one slow round
// trip does not count.
func (l *Limiter) RoundTrip() time.Duration {
	slowest := time.Duration(0)
	for _, p := range l.pools {
		slowest = max(slowest, p.roundTrip())
	}
	return slowest
}

func (p *pool) roundTrip() time.Duration {
	if c, ok := p.client.(interface{ roundTrip() time.Duration }); ok {
		return c.roundTrip()
	}
	return 0
}

// roundTrip returns the time of a round trip to the slowest server.
func (s *servers) roundTrip() time.Duration {
	if s.single != nil {
		return s.single.clock.roundTrip()
	}
	slowest := time.Duration(0)
	s.masters.Range(func(_, master any) bool {
		slowest = max(slowest, master.(*server).clock.roundTrip())
		return true
	})
	return slowest
}

// roundTrip returns the length of the shortest measurement, or 0 if there is none.
func (c *serverClock) roundTrip() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	shortest := time.Duration(0)
	for i, m := range c.measurements {
		length := time.Duration(m.maxOffset-m.minOffset) * time.Microsecond
		if i == 0 || length < shortest {
			shortest = length
		}
	}
	return shortest
}

// MeasureRoundTrip measures the round trip to each server and returns RoundTrip. It leaves out
// servers that don't answer before ctx ends.
func (l *Limiter) MeasureRoundTrip(ctx context.Context) time.Duration {
	for _, p := range l.pools {
		servers, _ := l.serversOf(ctx, p)
		for _, s := range servers {
			for range 2 { // the first measurement may contain the time to connect
				_ = s.measureClock(ctx)
			}
		}
	}
	l.adaptTimeout()
	return l.RoundTrip()
}

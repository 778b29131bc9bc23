package client

import "time"

// Clock is the clock of a Client. Package clienttest has a Clock that tests advance.
type Clock interface {
	// Now returns the time of decisions in this process.
	Now() time.Time

	// NewTimer returns a channel that gets a time after d, and a function that stops the timer.
	NewTimer(d time.Duration) (<-chan time.Time, func())
}

// systemClock is the clock of the system.
type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) NewTimer(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

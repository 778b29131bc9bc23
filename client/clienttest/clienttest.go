// Package clienttest helps to test programs that use package client. New returns a Client that decides in this process
// with a limits file, so tests need no service. The Client can have a virtual Clock, so a test of a wait takes no time.
package clienttest

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seed-81f232ab/rls/client"
	"github.com/seed-81f232ab/rls/client/local"
)

// New returns a Client. limits is the text of a limits file. If clock is nil, the Client has the clock of the system,
// which is virtual in a bubble of testing/synctest. The end of the test closes the Client.
func New(t testing.TB, limits string, clock *Clock) *client.Client {
	t.Helper()
	parsedLimits, err := local.ParseLimits("limits", limits)
	if err != nil {
		t.Fatalf("limits of the test: %v", err)
	}
	options := client.Options{}
	if clock != nil {
		options.Clock = clock
	}
	c, err := client.NewLocal(parsedLimits, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Clock is a clock that stands still until Advance. Deadlines of contexts don't follow a Clock.
type Clock struct {
	mu         sync.Mutex
	timerAdded sync.Cond // signals that timers has grown; its lock is mu
	now        time.Time
	timers     []*timer
}

// timer is a timer that has not ended.
type timer struct {
	endTime time.Time
	ch      chan time.Time // gets the time at the end
}

// NewClock returns a Clock that shows now.
func NewClock(now time.Time) *Clock {
	c := &Clock{now: now}
	c.timerAdded.L = &c.mu
	return c
}

// Now returns the time of the Clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// NewTimer returns a channel that gets the time when the Clock has advanced by d, and a function that stops the timer.
func (c *Clock) NewTimer(d time.Duration) (<-chan time.Time, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &timer{c.now.Add(d), make(chan time.Time, 1)}
	if d <= 0 {
		t.ch <- c.now
		return t.ch, func() {}
	}
	c.timers = append(c.timers, t)
	c.timerAdded.Broadcast()
	return t.ch, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.timers = slices.DeleteFunc(c.timers, func(other *timer) bool { return other == t })
	}
}

// Advance moves the Clock forward by d. It ends the timers whose time has come, the earliest timer first.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	slices.SortStableFunc(c.timers, func(a, b *timer) int { return a.endTime.Compare(b.endTime) })
	for len(c.timers) > 0 && !c.timers[0].endTime.After(c.now) {
		c.timers[0].ch <- c.timers[0].endTime
		c.timers = c.timers[1:]
	}
}

// WaitForTimers waits until n timers run. Each queue of callers that wait for the same
// descriptors has one timer, and each Hold has one timer.
func (c *Clock) WaitForTimers(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.timers) < n {
		c.timerAdded.Wait()
	}
}

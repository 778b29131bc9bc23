package events

import (
	"sync/atomic"
	"time"
)

// minuteLog decides when an event that can happen often is logged: at most once a minute. It is
// safe for concurrent use.
type minuteLog struct {
	events atomic.Int64 // since the last line
	logged atomic.Int64 // time of the last line in nanoseconds since 1970, or 0
}

// add counts an event. If a line is due, it returns the number of events since the last line.
func (l *minuteLog) add() (events int64, isDue bool) {
	now := time.Now().UnixNano()
	l.events.Add(1)
	logged := l.logged.Load()
	if logged != 0 && now-logged < int64(time.Minute) || !l.logged.CompareAndSwap(logged, now) {
		return 0, false
	}
	return l.events.Swap(0), true
}

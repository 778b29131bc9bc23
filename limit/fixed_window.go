package limit

import "strconv"

// fixedWindow counts hits in windows aligned to the epoch, as envoyproxy/ratelimit does, or in windows of a calendar.
//
// Bound: at most Max hits in an aligned window, and 2 × Max in any span of a window's length.
//
// State: a is the start of the window, and b is its count.
func fixedWindow(s *State, l *Limit, now, n int64, chargeDenied bool) Result {
	start, count := s.a, s.b
	alignedStart, end := l.WindowAt(now)
	switch {
	case alignedStart > start:
		start, count = alignedStart, 0
	case start-now > l.period:
		start = alignedStart
	}
	if start != alignedStart { // the clock went back by less than a window
		_, end = l.WindowAt(start)
	}
	count, r := l.CountHits(count, n, end-now, chargeDenied)
	if count == 0 {
		start = 0
	}
	s.a, s.b = start, count
	return r
}

// WindowAt returns the start and the end of the window that contains now. l must have AlignsWindows.
func (l *Limit) WindowAt(now int64) (start, end int64) {
	if l.calendar != nil {
		return l.calendar.windowAt(now)
	}
	start = now - now%l.period
	return start, start + l.period
}

// AppendWindow appends to b the name of the window that starts at start, such as @1700000040. The number is the start in
// seconds since 1970, or in milliseconds if windows can start within a second.
func (l *Limit) AppendWindow(b []byte, start int64) []byte {
	unit := int64(second)
	if l.period%second != 0 {
		unit = second / 1000
	}
	return strconv.AppendInt(append(b, '@'), start/unit, 10)
}

// WindowStart returns the start of the window that ends at end. l must have ResetsAtWindowEnd.
func (l *Limit) WindowStart(end int64) int64 {
	if l.calendar != nil {
		start, _ := l.calendar.windowAt(end - 1)
		return start
	}
	return end - l.period
}

// CountHits decides n hits on a window with this count, and returns the new count. The window ends in timeLeft
// microseconds.
func (l *Limit) CountHits(count, n, timeLeft int64, chargeDenied bool) (int64, Result) {
	r := Result{ResetAfter: timeLeft}
	r.Allowed = n < 0 || count+n <= l.max
	if r.Allowed || chargeDenied {
		count = min(max(count+n, 0), MaxHits)
	}
	r.Remaining = l.max - count
	if !r.Allowed {
		r.RetryAfter = timeLeft
		if n > l.max {
			r.RetryAfter = Never
		}
	}
	return count, r
}

package limit

// fixedWindow counts hits in windows aligned to the epoch, as envoyproxy/ratelimit does.
// Each window starts with a count of 0.
//
// Bound: at most Max hits in an aligned window. A span of a window's length can admit
// 2 × Max: Max before the boundary of two windows and Max after it.
//
// State: a is the window's start, b its count.
func fixedWindow(s *State, l *Limit, now, n int64, chargeDenied bool) Result {
	start, count := s.a, s.b
	if aligned := now - now%l.period; aligned > start || start-now > l.period {
		if aligned > start {
			count = 0
		}
		start = aligned
	}
	count, r := l.countHits(count, n, start+l.period-now, chargeDenied)
	if count == 0 {
		start = 0
	}
	s.a, s.b = start, count
	return r
}

// countHits decides n hits against the count of a window that ends after left
// microseconds. It returns the new count.
func (l *Limit) countHits(count, n, left int64, chargeDenied bool) (int64, Result) {
	r := Result{ResetAfter: left}
	switch {
	case n < 0:
		r.Allowed = true
		count = max(count+n, 0)
	case n == 0:
		r.Allowed = count <= l.max
	default:
		r.Allowed = count+n <= l.max
		if r.Allowed || chargeDenied {
			count = min(count+n, MaxHits)
		}
	}
	r.Remaining = l.max - count
	if !r.Allowed {
		r.RetryAfter = left
		if n > l.max {
			r.RetryAfter = Never
		}
	}
	return count, r
}

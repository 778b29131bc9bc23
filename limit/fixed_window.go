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
	switch aligned := now - now%l.period; {
	case aligned > start:
		start, count = aligned, 0
	case start-now > l.period:
		start = aligned
	}
	count, r := l.CountHits(count, n, start+l.period-now, chargeDenied)
	if count == 0 {
		start = 0
	}
	s.a, s.b = start, count
	return r
}

// CountHits decides n hits against the count of a window that ends after untilEnd
// microseconds. It returns the new count.
func (l *Limit) CountHits(count, n, untilEnd int64, chargeDenied bool) (int64, Result) {
	r := Result{ResetAfter: untilEnd}
	r.Allowed = n < 0 || count+n <= l.max
	if r.Allowed || chargeDenied {
		count = min(max(count+n, 0), MaxHits)
	}
	r.Remaining = l.max - count
	if !r.Allowed {
		r.RetryAfter = untilEnd
		if n > l.max {
			r.RetryAfter = Never
		}
	}
	return count, r
}

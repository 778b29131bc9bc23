package limit

// fixedWindow counts hits in windows aligned to the epoch, as
// envoyproxy/ratelimit does: a count that starts at 0 with each window.
//
// Bound: at most Max hits in an aligned window, hence at most 2 × Max in any
// span of a window's length (Max before a boundary, Max after).
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
	left := start + l.period - now

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
	if count == 0 {
		start = 0
	}
	s.a, s.b = start, count
	return r
}

package limit

// firstHitWindow counts hits in windows. A window starts with the first hit of a key after the previous window. A
// refund of all hits ends the window.
//
// Bound: at most Max hits in a window. A span of the same length can overlap two windows and so admit 2 × Max hits.
//
// State: a is the start of the window, and b is its count.
func firstHitWindow(s *State, l *Limit, now, n int64, chargeDenied bool) Result {
	start, count := s.a, s.b
	if count == 0 || now >= start+l.period {
		start, count = now, 0
	} else if start-now > l.period {
		start = now
	}
	count, r := l.CountHits(count, n, start+l.period-now, chargeDenied)
	if count == 0 { // no window has started
		*s = State{}
		r.ResetAfter = 0
		return r
	}
	s.a, s.b = start, count
	return r
}

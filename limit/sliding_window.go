package limit

// maxTicks is the resolution of the sliding window's weight. With counts up to
// 2 × 2^32 the products below stay under 2^53, so Lua computes them exactly.
const maxTicks = 1 << 19

// slidingWindow estimates the hits of the last window's length from two aligned
// windows: all of the current one and, of the one before, the share that the
// sliding window still covers. It is the "sliding window counter" that
// Cloudflare described in "How we built rate limiting capable of scaling to
// millions of domains" (2017).
//
// Bound: at most Max hits in an aligned window. The estimate is exact for hits
// that came evenly; if all of the last window's hits came at its very end, a
// span of a window's length can admit up to, but not reaching, 2 × Max. The share
// is counted in ticks of period/2^19 (at least a microsecond) and rounded up, so
// that rounding never admits more.
//
// State: a is the current window's start, b its count, c the last window's.
func slidingWindow(s *State, l *Limit, now, n int64, chargeDenied bool) Result {
	start, cur, prev := s.a, s.b, s.c
	switch aligned := now - now%l.period; {
	case aligned == start+l.period:
		start, cur, prev = aligned, 0, cur
	case aligned > start:
		start, cur, prev = aligned, 0, 0
	case start-now > l.period:
		start = aligned
	}
	share := l.ticks - max(now-start, 0)/l.tick
	carried := ceilDiv(prev*share, l.ticks)

	var r Result
	switch {
	case n < 0:
		r.Allowed = true
		cur += n
		if cur < 0 {
			prev = max(prev+cur, 0)
			cur = 0
		}
		carried = ceilDiv(prev*share, l.ticks)
	case n == 0:
		r.Allowed = cur+carried+1 <= l.max
	default:
		r.Allowed = cur+carried+n <= l.max
		if r.Allowed || chargeDenied {
			cur = max(cur, min(cur+n, 2*l.max-carried)) // the debt is bounded
		}
	}
	r.Remaining = l.max - cur - carried
	if !r.Allowed {
		r.RetryAfter = Never
		// What else may be spent when the hits pass.
		if spare := l.max - max(n, 1); spare >= 0 {
			r.RetryAfter = l.slidingFit(start, cur, prev, spare) - now
		}
	}
	switch {
	case cur > 0:
		r.ResetAfter = start + 2*l.period - now
	case prev > 0:
		r.ResetAfter = start + l.period - now
	default:
		start = 0
	}
	s.a, s.b, s.c = start, cur, prev
	return r
}

// slidingFit is the earliest time at which at most spare of cur and prev counts.
func (l *Limit) slidingFit(start, cur, prev, spare int64) int64 {
	if cur > spare { // not before the current window is itself the last one
		start, cur, prev = start+l.period, 0, cur
	}
	share := l.ticks
	if prev > 0 {
		share = min((spare-cur)*l.ticks/prev, l.ticks)
	}
	return start + min((l.ticks-share)*l.tick, l.period)
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

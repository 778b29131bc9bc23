package limit

// maxTicks is the largest number of ticks in a window. A count is at most 2 × 2^32, so Lua computes
// count × ticks exactly.
const maxTicks = 1 << 19

// slidingWindow estimates the hits in a sliding window from two aligned windows: all hits of the current window,
// and the part of the previous window that the sliding window still covers. Cloudflare described this algorithm in "How
// we built rate limiting capable of scaling to millions of domains" (2017).
//
// Bound: at most Max hits in an aligned window. If all hits of the previous window came at its end, a span of a
// window's length can admit almost 2 × Max. The covered part is a number of ticks of period/2^19 (at least a
// microsecond). It is rounded up, so rounding never admits more.
//
// State: a is the start of the current window, b is its count, and c is the count of the previous window.
func slidingWindow(s *State, l *Limit, now, n int64, chargeDenied bool) Result {
	start, currentCount, previousCount := s.a, s.b, s.c
	switch alignedStart := now - now%l.period; {
	case alignedStart == start+l.period:
		start, currentCount, previousCount = alignedStart, 0, currentCount
	case alignedStart > start:
		start, currentCount, previousCount = alignedStart, 0, 0
	case start-now > l.period:
		start = alignedStart
	}
	coveredTicks := l.ticks - max(now-start, 0)/l.tick
	previousHits := ceilDiv(previousCount*coveredTicks, l.ticks)

	var r Result
	switch {
	case n < 0:
		r.Allowed = true
		currentCount += n
		if currentCount < 0 {
			previousCount = max(previousCount+currentCount, 0)
			currentCount = 0
		}
		previousHits = ceilDiv(previousCount*coveredTicks, l.ticks)
	default:
		r.Allowed = currentCount+previousHits+max(n, 1) <= l.max
		if r.Allowed || chargeDenied {
			currentCount = max(currentCount, min(currentCount+n, 2*l.max-previousHits)) // bounds the debt
		}
	}
	r.Remaining = l.max - currentCount - previousHits
	if n >= 0 && r.Remaining < max(n, 1) {
		r.RetryAfter = Never
		if maxSpent := l.max - max(n, 1); maxSpent >= 0 {
			r.RetryAfter = l.slidingRetryTime(start, currentCount, previousCount, maxSpent) - now
		}
	}
	switch {
	case currentCount > 0:
		r.ResetAfter = start + 2*l.period - now
	case previousCount > 0:
		r.ResetAfter = start + l.period - now
	default:
		start = 0
	}
	s.a, s.b, s.c = start, currentCount, previousCount
	return r
}

// slidingRetryTime returns the earliest time at which the estimated hits are at most maxSpent.
func (l *Limit) slidingRetryTime(start, currentCount, previousCount, maxSpent int64) int64 {
	if currentCount > maxSpent { // the current window ends before the hits pass
		start, currentCount, previousCount = start+l.period, 0, currentCount
	}
	coveredTicks := l.ticks
	if previousCount > 0 {
		coveredTicks = min((maxSpent-currentCount)*l.ticks/previousCount, l.ticks)
	}
	return start + min((l.ticks-coveredTicks)*l.tick, l.period)
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

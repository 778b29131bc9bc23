package metrics

import (
	"cmp"
	"math"
	"sync/atomic"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// hitCounts counts the hits of one limit.
type hitCounts struct {
	within, near, over  atomic.Uint64
	overLocal, shadowed atomic.Uint64

	// others are the hits that are in neither within nor over: hits of failed calls, and
	// the part of denied hits that was still within the limit.
	others atomic.Uint64
}

// HitSums are the sums of several hitCounts, or the values of one.
type HitSums struct {
	// Total is all hits. Peeks and refunds are not counted.
	Total uint64

	// WithinLimit are the hits that passed. OverLimit are the hits beyond the limit.
	WithinLimit, OverLimit uint64

	// NearLimit are the hits between NEAR_LIMIT_RATIO × the limit and the limit.
	NearLimit uint64

	// OverLocal are those of OverLimit that the deny cache or the guard denied.
	OverLocal uint64

	// Shadow are those of OverLimit that passed because the rule is in shadow mode.
	Shadow uint64
}

// add adds the values of c to s. It reads shadowed before over, because count writes them in the
// other order. So Shadow never exceeds OverLimit.
func (s *HitSums) add(c *hitCounts) {
	s.Shadow += c.shadowed.Load()
	within, over := c.within.Load(), c.over.Load()
	s.Total += within + over + c.others.Load()
	s.WithinLimit += within
	s.OverLimit += over
	s.NearLimit += c.near.Load()
	s.OverLocal += c.overLocal.Load()
}

// addSums adds other to s.
func (s *HitSums) addSums(other HitSums) {
	s.Total += other.Total
	s.WithinLimit += other.WithinLimit
	s.OverLimit += other.OverLimit
	s.NearLimit += other.NearLimit
	s.OverLocal += other.OverLocal
	s.Shadow += other.Shadow
}

// hitClassifier decides whether a hit counts as within, near or over its limit.
type hitClassifier struct {
	nearRatio     float32
	fallbackRatio float64 // of limits without a ratio
	allOrNone     bool
}

// count counts n hits on l with the result r, like envoyproxy/ratelimit. n is above 0.
// isShadow reports whether the rule is in shadow mode.
func (h *hitClassifier) count(c *hitCounts, l *limit.Limit, n int64, isShadow bool, r *backend.Result) {
	switch {
	case r.Err != nil:
		c.others.Add(uint64(n))
	case r.Allowed:
		c.within.Add(uint64(n))
		if near := min(n, h.nearHits(l, r)); near > 0 {
			c.near.Add(uint64(near))
		}
	default:
		over := h.overHits(c, l, n, isShadow, r)
		c.over.Add(uint64(over))
		if over < n {
			c.others.Add(uint64(n - over))
		}
		if r.Source == backend.SourceDenyCache || r.Source == backend.SourceGuard {
			c.overLocal.Add(uint64(over))
		}
		if isShadow {
			c.shadowed.Add(uint64(over))
		}
	}
}

// nearHits returns how far the counter of l is beyond the near limit, if r allowed hits. The
// fallback knows only the counter of this replica, so its near limit is a share of the limit.
func (h *hitClassifier) nearHits(l *limit.Limit, r *backend.Result) int64 {
	if r.Source == backend.SourceFallback {
		if r.Mode != limit.FailLocal {
			return 0
		}
		l = h.fallbackShare(l)
	}
	return l.Spent(r.Result) - h.nearLimit(l)
}

// overHits returns how many of n denied hits are beyond the limit. If denied hits are
// charged, the first of them can fill the limit up. Those hits are not over, and overHits
// counts them in c.near if they are near the limit.
func (h *hitClassifier) overHits(c *hitCounts, l *limit.Limit, n int64, isShadow bool, r *backend.Result) int64 {
	if !l.ChargeDenied || h.allOrNone && !isShadow {
		return n
	}
	switch r.Source {
	case backend.SourceDenyCache, backend.SourceGuard:
		return n
	case backend.SourceFallback:
		if r.Mode != limit.FailLocal {
			return n
		}
		l = h.fallbackShare(l)
	}
	after := l.Spent(r.Result)
	before := after - n
	if before >= l.Capacity() {
		return n
	}
	if near := l.Capacity() - max(h.nearLimit(l), before); near > 0 {
		c.near.Add(uint64(near))
	}
	return after - l.Capacity()
}

// nearLimit returns the count from which hits on l are near the limit. It has the single
// precision of envoyproxy/ratelimit.
func (h *hitClassifier) nearLimit(l *limit.Limit) int64 {
	return int64(math.Floor(float64(float32(l.Capacity()) * h.nearRatio)))
}

// fallbackShare returns the limit that the fallback applies in place of l.
func (h *hitClassifier) fallbackShare(l *limit.Limit) *limit.Limit {
	return l.Scaled(cmp.Or(l.FallbackRatio, h.fallbackRatio))
}

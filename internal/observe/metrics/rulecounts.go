package metrics

import (
	"math"
	"sync/atomic"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
)

// hitCounts counts the hits on one limit. HitSums describes the counts.
type hitCounts struct {
	withinLimit, nearLimit, overLimit, overLocal, shadowed, refunded atomic.Uint64

	// otherHits are the hits that count neither as withinLimit nor as overLimit: the hits of failed
	// calls, and the first of several denied hits if the limit had room for a part of these hits.
	otherHits atomic.Uint64
}

// HitSums are the values of one hitCounts, or the sums of several hitCounts.
type HitSums struct {
	Total       uint64 // all hits except peeks and refunds
	WithinLimit uint64 // hits that passed
	NearLimit   uint64 // hits between NEAR_LIMIT_RATIO × the limit and the limit
	OverLimit   uint64 // hits beyond the limit
	OverLocal   uint64 // the hits of OverLimit that the deny cache denied
	Shadow      uint64 // the hits of OverLimit that passed because the rule is in shadow mode
	Refunded    uint64 // hits that refunds have taken off
}

// sums returns the values of c. It reads shadowed before overLimit, so that Shadow never exceeds OverLimit.
func (c *hitCounts) sums() HitSums {
	s := HitSums{Shadow: c.shadowed.Load()}
	s.WithinLimit, s.OverLimit = c.withinLimit.Load(), c.overLimit.Load()
	s.Total = s.WithinLimit + s.OverLimit + c.otherHits.Load()
	s.NearLimit, s.OverLocal, s.Refunded = c.nearLimit.Load(), c.overLocal.Load(), c.refunded.Load()
	return s
}

func (s *HitSums) add(other HitSums) {
	s.Total += other.Total
	s.WithinLimit += other.WithinLimit
	s.OverLimit += other.OverLimit
	s.NearLimit += other.NearLimit
	s.OverLocal += other.OverLocal
	s.Shadow += other.Shadow
	s.Refunded += other.Refunded
}

// hitClassifier decides whether a hit counts as within, near or over its limit.
type hitClassifier struct {
	nearRatio float32
}

// count counts the hits of d as envoyproxy/ratelimit counts them. d must not be a peek.
func (h *hitClassifier) count(c *hitCounts, d *service.Decision) {
	n, r := d.N, &d.Result
	switch {
	case n < 0:
		c.refunded.Add(uint64(-n))
	case r.Err != nil:
		c.otherHits.Add(uint64(n))
	case r.Allowed:
		c.withinLimit.Add(uint64(n))
		if near := min(n, h.nearHits(d.Limit.Limit, r)); near > 0 {
			c.nearLimit.Add(uint64(near))
		}
	default:
		over, near := h.overHits(d)
		c.overLimit.Add(uint64(over))
		if near > 0 {
			c.nearLimit.Add(uint64(near))
		}
		if over < n {
			c.otherHits.Add(uint64(n - over))
		}
		if r.Source == backend.SourceDenyCache {
			c.overLocal.Add(uint64(over))
		}
		if d.Shadow {
			c.shadowed.Add(uint64(over))
		}
	}
}

// nearHits returns how many hits the counter of l has beyond the near limit, after r has allowed hits. The fallback
// knows only the counter of this replica, so nearHits compares this counter with the share of this replica.
func (h *hitClassifier) nearHits(l *limit.Limit, r *backend.Result) int64 {
	if r.Source == backend.SourceFallback {
		if r.Share == nil {
			return 0
		}
		l = r.Share
	}
	return l.Spent(r.Result) - h.nearLimit(l)
}

// overHits returns how many of the denied hits of d are beyond the limit, and how many of the other hits are near the
// limit. If denied hits are charged, there can be other hits: those for which the limit still had room.
func (h *hitClassifier) overHits(d *service.Decision) (over, near int64) {
	l, n, r := d.Limit.Limit, d.N, &d.Result
	if !d.ChargesDenied {
		return n, 0
	}
	switch r.Source {
	case backend.SourceDenyCache:
		return n, 0
	case backend.SourceFallback:
		if r.Share == nil {
			return n, 0
		}
		l = r.Share
	}
	spentAfter := l.Spent(r.Result)
	spentBefore := spentAfter - n
	if spentBefore >= l.Capacity() {
		return n, 0
	}
	return spentAfter - l.Capacity(), l.Capacity() - max(h.nearLimit(l), spentBefore)
}

// nearLimit returns the count above which hits are near the limit: 8 for a limit of 10 and a ratio of 0.8. It rounds
// with 32 bits, as envoyproxy/ratelimit does.
func (h *hitClassifier) nearLimit(l *limit.Limit) int64 {
	return int64(math.Floor(float64(float32(l.Capacity()) * h.nearRatio)))
}

package metrics

import (
	"math"
	"sync/atomic"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
)

// hitCounts counts the hits of one limit.
type hitCounts struct {
	within, near, over, overLocal, shadowed, refunded atomic.Uint64

	// others are the hits that are in neither within nor over: hits of failed calls, and
	// the part of denied hits that was still within the limit.
	others atomic.Uint64
}

// HitSums are the sums of several hitCounts, or the values of one.
type HitSums struct {
	Total       uint64 // all hits, without peeks and refunds
	WithinLimit uint64 // that passed
	NearLimit   uint64 // between NEAR_LIMIT_RATIO × the limit and the limit
	OverLimit   uint64 // beyond the limit
	OverLocal   uint64 // those of OverLimit that the deny cache denied
	Shadow      uint64 // those of OverLimit that passed because the rule is in shadow mode
	Refunded    uint64 // that refunds have taken off
}

// sums returns the values of c. It reads shadowed before over, so Shadow never exceeds OverLimit.
func (c *hitCounts) sums() HitSums {
	s := HitSums{Shadow: c.shadowed.Load()}
	s.WithinLimit, s.OverLimit = c.within.Load(), c.over.Load()
	s.Total = s.WithinLimit + s.OverLimit + c.others.Load()
	s.NearLimit, s.OverLocal, s.Refunded = c.near.Load(), c.overLocal.Load(), c.refunded.Load()
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

// count counts the hits of d like envoyproxy/ratelimit. The decision is no peek.
func (h *hitClassifier) count(c *hitCounts, d *service.Decision) {
	n, r := d.N, &d.Result
	switch {
	case n < 0:
		c.refunded.Add(uint64(-n))
	case r.Err != nil:
		c.others.Add(uint64(n))
	case r.Allowed:
		c.within.Add(uint64(n))
		if near := min(n, h.nearHits(d.Limit.Limit, r)); near > 0 {
			c.near.Add(uint64(near))
		}
	default:
		over, near := h.overHits(d)
		c.over.Add(uint64(over))
		if near > 0 {
			c.near.Add(uint64(near))
		}
		if over < n {
			c.others.Add(uint64(n - over))
		}
		if r.Source == backend.SourceDenyCache {
			c.overLocal.Add(uint64(over))
		}
		if d.Shadow {
			c.shadowed.Add(uint64(over))
		}
	}
}

// nearHits returns how far the counter of l is beyond the near limit, if r allowed hits. The
// fallback knows only the counter of this replica, so its near limit is a share of the limit.
func (h *hitClassifier) nearHits(l *limit.Limit, r *backend.Result) int64 {
	if r.Source == backend.SourceFallback {
		if r.Share == nil {
			return 0
		}
		l = r.Share
	}
	return l.Spent(r.Result) - h.nearLimit(l)
}

// overHits returns how many of the denied hits of d are beyond the limit, and how many of the others are near it. If
// denied hits are charged, the first of them can fill the limit up.
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
	after := l.Spent(r.Result)
	before := after - n
	if before >= l.Capacity() {
		return n, 0
	}
	return after - l.Capacity(), l.Capacity() - max(h.nearLimit(l), before)
}

// nearLimit returns the count from which hits on l are near it, in the precision of envoyproxy/ratelimit.
func (h *hitClassifier) nearLimit(l *limit.Limit) int64 {
	return int64(math.Floor(float64(float32(l.Capacity()) * h.nearRatio)))
}

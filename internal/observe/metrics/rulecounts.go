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
	withinLimit, nearLimit, overLimit, deniedByCache, shadowHits, refundedHits atomic.Uint64

	// otherHits are the hits that count neither as withinLimit nor as overLimit: the hits of failed
	// calls, and the first of several denied hits if the limit had room for a part of these hits.
	otherHits atomic.Uint64
}

// HitSums are the values of one hitCounts, or the sums of several hitCounts.
type HitSums struct {
	Total         uint64 // all hits except peeks and refunds
	WithinLimit   uint64 // hits that passed
	NearLimit     uint64 // hits between NEAR_LIMIT_RATIO × the limit and the limit
	OverLimit     uint64 // hits beyond the limit
	DeniedByCache uint64 // the hits of OverLimit that the deny cache denied
	ShadowHits    uint64 // the hits of OverLimit that passed because the rule is in shadow mode
	RefundedHits  uint64 // hits that refunds have taken off
}

// sums returns the values of c. It reads shadowHits before overLimit, so that ShadowHits never
// exceeds OverLimit.
func (c *hitCounts) sums() HitSums {
	s := HitSums{ShadowHits: c.shadowHits.Load()}
	s.WithinLimit, s.OverLimit = c.withinLimit.Load(), c.overLimit.Load()
	s.Total = s.WithinLimit + s.OverLimit + c.otherHits.Load()
	s.NearLimit, s.DeniedByCache, s.RefundedHits = c.nearLimit.Load(), c.deniedByCache.Load(), c.refundedHits.Load()
	return s
}

func (s *HitSums) add(other HitSums) {
	s.Total += other.Total
	s.WithinLimit += other.WithinLimit
	s.OverLimit += other.OverLimit
	s.NearLimit += other.NearLimit
	s.DeniedByCache += other.DeniedByCache
	s.ShadowHits += other.ShadowHits
	s.RefundedHits += other.RefundedHits
}

type hitClassifier struct {
	nearRatio float32
}

// count counts the hits of decision as envoyproxy/ratelimit counts them. decision must not be a peek.
func (h *hitClassifier) count(counts *hitCounts, decision *service.Decision) {
	n, result := decision.N, &decision.Result
	switch {
	case n < 0:
		counts.refundedHits.Add(uint64(-n))
	case result.Err != nil:
		counts.otherHits.Add(uint64(n))
	case result.Allowed:
		counts.withinLimit.Add(uint64(n))
		if nearHits := min(n, h.nearHits(decision.Limit.Limit, result)); nearHits > 0 {
			counts.nearLimit.Add(uint64(nearHits))
		}
	default:
		overHits, nearHits := h.overHits(decision)
		counts.overLimit.Add(uint64(overHits))
		if nearHits > 0 {
			counts.nearLimit.Add(uint64(nearHits))
		}
		if overHits < n {
			counts.otherHits.Add(uint64(n - overHits))
		}
		if result.Source == backend.SourceDenyCache {
			counts.deniedByCache.Add(uint64(overHits))
		}
		if decision.Shadow {
			counts.shadowHits.Add(uint64(overHits))
		}
	}
}

// nearHits returns how many hits the counter of countedLimit has beyond the near limit. result has the state of the counter
// after its hits were allowed. The fallback knows only the counter and the share of this replica, so nearHits compares these.
func (h *hitClassifier) nearHits(countedLimit *limit.Limit, result *backend.Result) int64 {
	if result.Source == backend.SourceFallback {
		if result.Share == nil {
			return 0
		}
		countedLimit = result.Share
	}
	return countedLimit.Spent(result.Result) - h.nearLimit(countedLimit)
}

// overHits returns how many of the denied hits of d are beyond the limit, and how many of the other hits are near the
// limit. If denied hits are charged, the other hits are the hits for which the limit still had room.
func (h *hitClassifier) overHits(d *service.Decision) (overHits, nearHits int64) {
	countedLimit, n, result := d.Limit.Limit, d.N, &d.Result
	if !d.ChargesDenied {
		return n, 0
	}
	switch result.Source {
	case backend.SourceDenyCache:
		return n, 0
	case backend.SourceFallback:
		if result.Share == nil {
			return n, 0
		}
		countedLimit = result.Share
	}
	spentAfter := countedLimit.Spent(result.Result)
	spentBefore := spentAfter - n
	if spentBefore >= countedLimit.Capacity() || spentAfter < countedLimit.Capacity() { // a region can deny before the limit is spent
		return n, 0
	}
	return spentAfter - countedLimit.Capacity(), countedLimit.Capacity() - max(h.nearLimit(countedLimit), spentBefore)
}

// nearLimit returns the count above which hits are near the limit: 8 for a limit of 10 and a ratio of 0.8. nearLimit
// rounds with 32 bits, as envoyproxy/ratelimit does.
func (h *hitClassifier) nearLimit(l *limit.Limit) int64 {
	return int64(math.Floor(float64(float32(l.Capacity()) * h.nearRatio)))
}

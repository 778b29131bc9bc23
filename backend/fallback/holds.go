package fallback

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// recordHold raises lastHoldEnd to the expiry of the anonymous hold that h has taken in the secondary. It ignores holds
// with an id, because their release ends no other hold.
func (l *Limiter) recordHold(h *backend.Hit) {
	if h.HoldID != "" {
		return
	}
	end := time.Now().UnixMicro() + h.Limit.Period()
	for oldEnd := l.lastHoldEnd.Load(); oldEnd < end; oldEnd = l.lastHoldEnd.Load() {
		if l.lastHoldEnd.CompareAndSwap(oldEnd, end) {
			return
		}
	}
}

// takeWithHolds does what Take does, while the secondary may have anonymous holds from an outage. A release does not say
// whether its hold is in the primary or in the secondary. If a release ended the hold of another holder in the primary,
// the primary could admit too many holders. So a release ends a hold of the secondary if the secondary has one. But if an
// earlier hit of the call is on the same counter, both hits take the same way, so that the release sees the charge.
func (l *Limiter) takeWithHolds(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	if end := l.lastHoldEnd.Load(); end <= now.UnixMicro() {
		l.lastHoldEnd.CompareAndSwap(end, 0)
		l.take(ctx, now, hits, results)
		return
	}
	isReleased := make([]bool, len(hits))
	for i := range hits {
		h := &hits[i]
		isFirstOnCounter := !slices.ContainsFunc(hits[:i], func(other backend.Hit) bool {
			return bytes.Equal(other.Key, h.Key) && other.Limit.Tag() == h.Limit.Tag()
		})
		isReleased[i] = isFirstOnCounter && l.releaseHold(ctx, now, h, &results[i])
	}
	backend.TakePart(ctx, now, takeFunc(l.take), hits, results, func(i int) bool { return !isReleased[i] })
}

// releaseHold ends anonymous holds of the secondary, as the release h says, and sets r. If the secondary has no anonymous
// hold, or if h releases no anonymous hold, it returns false.
func (l *Limiter) releaseHold(ctx context.Context, now time.Time, h *backend.Hit, r *backend.Result) bool {
	isReset := h.N <= -limit.MaxHits
	isRelease := h.N < 0 && !isReset && h.HoldID == "" && h.Limit.Algorithm.HasHolds()
	if !isRelease || l.modeOf(h.Limit) != limit.FailLocal {
		return false
	}
	batch := backend.NewSubBatch()
	defer batch.Release()
	peek := l.localHit(h)
	peek.N = 0
	batch.AddWithPrefix(Namespace, 0, peek)
	batch.Take(ctx, now, l.options.Secondary)
	if batch.Results[0].Err != nil || peek.Limit.Spent(batch.Results[0].Result) == 0 {
		return false
	}
	remaining := batch.Results[0].Remaining
	batch.Hits[0].N = h.N
	batch.Take(ctx, now, l.options.Secondary)
	if batch.Results[0].Remaining <= remaining {
		return false // no hold was released, because all holds of the counter have an id
	}
	*r = batch.Results[0] // with the Source of the secondary, because the decision is not degraded
	return true
}

type takeFunc func(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result)

// Take implements backend.Limiter.
func (f takeFunc) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	f(ctx, now, hits, results)
}

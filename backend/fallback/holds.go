package fallback

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// noteHold records in lastHoldEnd when the anonymous hold of h in the secondary expires. lastHoldEnd is 0 if there was no
// such hold. Named holds are not recorded, because the release of a named hold ends no other hold.
func (l *Limiter) noteHold(h *backend.Hit) {
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

// takeWithHolds is Take while the secondary may have anonymous holds from an outage. A release does not say which Limiter
// has its hold. If the primary ended the hold of another holder, the primary could admit too many holders. So a release
// ends a hold of the secondary if the secondary has an anonymous hold. A release after an earlier hit on the same counter
// goes where the earlier hit goes, so that it sees the charge of this hit.
func (l *Limiter) takeWithHolds(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	if end := l.lastHoldEnd.Load(); end <= now.UnixMicro() {
		l.lastHoldEnd.CompareAndSwap(end, 0)
		l.take(ctx, now, hits, results)
		return
	}
	isReleased := make([]bool, len(hits))
	for i := range hits {
		isReleased[i] = !hasCounterOf(hits[:i], &hits[i]) && l.releaseHold(ctx, now, &hits[i], &results[i])
	}
	backend.TakePart(ctx, now, takeFunc(l.take), hits, results, func(i int) bool { return !isReleased[i] })
}

// hasCounterOf reports whether a hit of hits is on the counter of h.
func hasCounterOf(hits []backend.Hit, h *backend.Hit) bool {
	return slices.ContainsFunc(hits, func(other backend.Hit) bool {
		return bytes.Equal(other.Key, h.Key) && other.Limit.Tag() == h.Limit.Tag()
	})
}

// releaseHold ends anonymous holds of the secondary, as the release h says, and sets r. It returns false if the secondary
// has no anonymous hold, or if h is no release.
func (l *Limiter) releaseHold(ctx context.Context, now time.Time, h *backend.Hit, r *backend.Result) bool {
	if h.N >= 0 || h.N <= -limit.MaxHits || h.HoldID != "" || !h.Limit.Algorithm.HasHolds() || l.mode(h.Limit) != limit.FailLocal {
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
		return false // all holds of the counter have an id
	}
	*r = batch.Results[0] // Source is not SourceFallback, because the decision is not degraded
	return true
}

// takeFunc is a function that is a backend.Limiter.
type takeFunc func(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result)

// Take implements backend.Limiter.
func (f takeFunc) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	f(ctx, now, hits, results)
}

package explain

import (
	"context"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// peeker is a backend.Limiter that answers as the service would, and charges nothing.
type peeker struct {
	o     *Options
	peeks []peek // of the hits of the last Take
}

// peek is what the Layers say about one hit.
type peek struct {
	backend.Peek
	isRetryExact bool // the RetryAfter of the result is exact, or Never
}

var _ backend.Limiter = (*peeker)(nil)

// Take implements backend.Limiter.
func (p *peeker) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	layerPeeks := make([]backend.Peek, len(hits))
	p.o.Layer.Peek(ctx, now, hits, layerPeeks)
	p.peeks = make([]peek, len(hits))
	anyDenied := false // whether a hit denies the group
	for i := range hits {
		p.peeks[i].Peek = layerPeeks[i]
		if d := layerPeeks[i].Denial; d != nil {
			results[i], p.peeks[i].isRetryExact = d.Result, true
			anyDenied = anyDenied || hits[i].DeniesGroup(&results[i])
		}
	}
	cacheDenied := anyDenied
	chargedHits := map[string]int64{} // hits of this request, by counter
	for i := range hits {
		h := &hits[i]
		if layerPeeks[i].Denial != nil {
			continue
		}
		inGroup := h.InGroup()
		charge := &plannedCharge{hit: h, emptyHitResult: layerPeeks[i].Result, earlierHits: chargedHits[counterName(h)]}
		charge.chargesDenied = h.Limit.ChargeDenied && !inGroup
		charge.isSkipped = cacheDenied && inGroup
		results[i], p.peeks[i].isRetryExact = charge.nextResult()
		if results[i].Err == nil && !charge.isSkipped && (results[i].Allowed || charge.chargesDenied) {
			chargedHits[counterName(h)] += h.N
		}
		anyDenied = anyDenied || h.DeniesGroup(&results[i])
	}
	if anyDenied && !cacheDenied {
		p.undoCharges(hits, results, chargedHits)
	}
}

// undoCharges changes the results of the hits of the group, because one of them denies it.
func (p *peeker) undoCharges(hits []backend.Hit, results []backend.Result, chargedHits map[string]int64) {
	for i := range hits {
		if h := &hits[i]; h.InGroup() && results[i].Allowed {
			chargedHits[counterName(h)] -= h.N
		}
	}
	for i := range hits {
		if h := &hits[i]; h.InGroup() {
			results[i].Remaining = p.peeks[i].Remaining - chargedHits[counterName(h)]
		}
	}
}

func counterName(h *backend.Hit) string { return h.Limit.Tag() + ":" + string(h.Key) }

// plannedCharge is a hit and the counter that it would charge.
type plannedCharge struct {
	hit            *backend.Hit
	emptyHitResult backend.Result // the answer to a hit of 0
	earlierHits    int64          // hits that the request charges to the counter before h

	chargesDenied bool // h is charged even if it is denied
	isSkipped     bool // h is not charged
}

// nextResult returns the answer to the hit. isRetryExact reports whether RetryAfter is the time
// until a hit would pass if no hit came before. Otherwise RetryAfter is only positive.
func (c *plannedCharge) nextResult() (r backend.Result, isRetryExact bool) {
	r, h := c.emptyHitResult, c.hit
	if r.Err != nil || r.Source == backend.SourceFallback && r.Share == nil {
		return r, true // there is no counter
	}
	if h.N == 0 && c.earlierHits == 0 {
		return r, true // r is the answer to a peek
	}
	wasDenied := !r.Allowed
	r.Remaining -= c.earlierHits
	r.Allowed, r.RetryAfter = h.N <= r.Remaining, 0
	if !c.isSkipped && (r.Allowed || c.chargesDenied) {
		r.Remaining -= h.N
		if h.N < 0 { // a refund returns no more than what is spent
			r.Remaining = min(r.Remaining, h.Limit.Capacity())
		}
	}
	switch {
	case r.Allowed:
	case h.N > h.Limit.Capacity():
		r.RetryAfter = limit.Never
	case !h.Limit.Algorithm.ResetsAtOnce() && wasDenied && c.earlierHits == 0 && h.N == 1:
		r.RetryAfter = c.emptyHitResult.RetryAfter
	default:
		if r.RetryAfter = r.ResetAfter; r.RetryAfter == 0 {
			r.RetryAfter = h.Limit.Period() // the hits of this request start a window
		}
		return r, h.Limit.Algorithm.ResetsAtOnce()
	}
	return r, true
}

// emptyCounters is a backend.Limiter whose counters are always empty.
type emptyCounters struct{}

// Take implements backend.Limiter.
func (emptyCounters) Take(_ context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	for i, h := range hits {
		results[i] = backend.Result{Result: h.Limit.Take(new(limit.State), now.UnixMicro(), h.N)}
	}
}

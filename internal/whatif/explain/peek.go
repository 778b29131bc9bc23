package explain

import (
	"context"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// peeker is a backend.Limiter that answers as the service would, and charges nothing.
type peeker struct {
	options *Options
	peeks   []peek // the peeks of the last Take, one for each hit
}

// peek is the answer of Options.Layer about one hit.
type peek struct {
	backend.Peek
	isRetryExact bool // the RetryAfter of the result is exact or Never
}

var _ backend.Limiter = (*peeker)(nil)

func (p *peeker) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	layerPeeks := make([]backend.Peek, len(hits))
	p.options.Layer.Peek(ctx, now, hits, layerPeeks)
	p.peeks = make([]peek, len(hits))
	isGroupDenied := false
	for i := range hits {
		p.peeks[i].Peek = layerPeeks[i]
		if d := layerPeeks[i].Denial; d != nil {
			results[i], p.peeks[i].isRetryExact = d.Result, true
			isGroupDenied = isGroupDenied || hits[i].DeniesGroup(&results[i])
		}
	}
	isGroupDeniedByCache := isGroupDenied
	chargedHits := map[string]int64{} // the charged hits of this request; the key is the name of the counter
	for i := range hits {
		h := &hits[i]
		if layerPeeks[i].Denial != nil {
			continue
		}
		isSkipped := isGroupDeniedByCache && h.IsInGroup()
		results[i], p.peeks[i].isRetryExact = nextResult(h, layerPeeks[i].Result, chargedHits[counterName(h)], isSkipped)
		if results[i].Err == nil && !isSkipped && (results[i].Allowed || chargesDenied(h)) {
			chargedHits[counterName(h)] += h.N
			if h.N < 0 { // a refund returns at most the spent hits
				chargedHits[counterName(h)] = max(chargedHits[counterName(h)], layerPeeks[i].Remaining-h.Limit.Capacity())
			}
		}
		isGroupDenied = isGroupDenied || h.DeniesGroup(&results[i])
	}
	if isGroupDenied && !isGroupDeniedByCache {
		p.undoCharges(hits, results, chargedHits)
	}
}

// undoCharges removes the charges of the group, because one hit of the group is denied.
func (p *peeker) undoCharges(hits []backend.Hit, results []backend.Result, chargedHits map[string]int64) {
	for i := range hits {
		if h := &hits[i]; h.IsInGroup() && results[i].Allowed {
			chargedHits[counterName(h)] -= h.N
		}
	}
	for i := range hits {
		if h := &hits[i]; h.IsInGroup() {
			results[i].Remaining = p.peeks[i].Remaining - chargedHits[counterName(h)]
		}
	}
}

func counterName(h *backend.Hit) string { return h.Limit.Tag() + ":" + string(h.Key) }

// chargesDenied reports whether h is charged even if it is denied.
func chargesDenied(h *backend.Hit) bool { return h.Limit.ChargeDenied && !h.IsInGroup() }

// nextResult returns the answer to h after earlierHits hits of the same request on the same counter. peek is the answer
// to a peek. If isSkipped is true, h is not charged. If isRetryExact is false, RetryAfter is positive but has no meaning.
func nextResult(h *backend.Hit, peek backend.Result, earlierHits int64, isSkipped bool) (r backend.Result, isRetryExact bool) {
	isNotCounted := peek.Err != nil || peek.Source == backend.SourceFallback && peek.Share == nil
	if isNotCounted || h.N == 0 && earlierHits == 0 {
		return peek, true
	}
	r = peek
	r.Remaining -= earlierHits
	r.Result = h.Limit.ResultFromPeek(r.Result, h.N)
	if !isSkipped && (r.Allowed || chargesDenied(h)) {
		r.Remaining -= h.N
		if h.N < 0 { // a refund returns at most the spent hits
			r.Remaining = min(r.Remaining, h.Limit.Capacity())
		}
	}
	resetsAtOnce := h.Limit.Algorithm.ResetsAtWindowEnd()
	switch {
	case r.Allowed || r.RetryAfter == limit.Never:
		return r, true
	case !resetsAtOnce && !peek.Allowed && earlierHits == 0 && h.N == 1:
		r.RetryAfter = peek.RetryAfter
		return r, true
	case r.RetryAfter == 0:
		r.RetryAfter = h.Limit.Period() // the hits of this request start a window
	}
	return r, resetsAtOnce
}

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
	isRetryExact bool // the RetryAfter of the result is exact, or Never
}

var _ backend.Limiter = (*peeker)(nil)

// Take implements backend.Limiter. The group of a request is the hits that are charged only if none of them is denied.
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
		hit := &hits[i]
		if layerPeeks[i].Denial != nil {
			continue
		}
		isSkipped := isGroupDeniedByCache && hit.IsInGroup()
		results[i], p.peeks[i].isRetryExact = nextResult(hit, layerPeeks[i].Result, chargedHits[counterName(hit)], isSkipped)
		if results[i].Err == nil && !isSkipped && (results[i].Allowed || chargesDenied(hit)) {
			chargedHits[counterName(hit)] += hit.N
			if hit.N < 0 { // a refund returns at most the spent hits
				chargedHits[counterName(hit)] = max(chargedHits[counterName(hit)], layerPeeks[i].Remaining-hit.Limit.Capacity())
			}
		}
		isGroupDenied = isGroupDenied || hit.DeniesGroup(&results[i])
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

func chargesDenied(h *backend.Hit) bool { return h.Limit.ChargeDenied && !h.IsInGroup() }

// nextResult returns the answer to hit after earlierHits hits of the same request on the same counter. peek is the answer
// without these hits. If isSkipped is true, hit is not charged. If isRetryExact is false, RetryAfter is only known to be positive.
func nextResult(hit *backend.Hit, peek backend.Result, earlierHits int64, isSkipped bool) (result backend.Result, isRetryExact bool) {
	isNotCounted := peek.Err != nil || peek.Source == backend.SourceFallback && peek.Share == nil
	if isNotCounted || hit.N == 0 && earlierHits == 0 {
		return peek, true
	}
	result = peek
	result.Remaining -= earlierHits
	result.Result = hit.Limit.ResultFromPeek(result.Result, hit.N)
	if !isSkipped && (result.Allowed || chargesDenied(hit)) {
		result.Remaining -= hit.N
		if hit.N < 0 { // a refund returns at most the spent hits
			result.Remaining = min(result.Remaining, hit.Limit.Capacity())
		}
	}
	resetsAtWindowEnd := hit.Limit.Algorithm.ResetsAtWindowEnd()
	switch {
	case result.Allowed || result.RetryAfter == limit.Never:
		return result, true
	case !resetsAtWindowEnd && !peek.Allowed && earlierHits == 0 && hit.N == 1:
		result.RetryAfter = peek.RetryAfter
		return result, true
	case result.RetryAfter == 0:
		result.RetryAfter = hit.Limit.Period() // the hits of this request start a window
	}
	return result, resetsAtWindowEnd
}

package explain

import (
	"context"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// Cache is a part of the service that can answer a hit before the backend does.
type Cache interface {
	// PeekDenial returns the denial that the cache would answer to h, and the time since
	// which it denies. ok is false if the cache would not answer. PeekDenial changes nothing.
	PeekDenial(now time.Time, h *backend.Hit) (r backend.Result, since time.Time, ok bool)
}

// peeker is a backend.Limiter that answers as the service would, and charges nothing.
type peeker struct {
	o     *Options
	peeks []peek // of the hits of the last Take
}

// peek is the state of the counter and of the caches for one hit.
type peek struct {
	emptyHitResult backend.Result // the answer to a hit of 0
	since          time.Time      // of the denial of a cache
	isRetryExact   bool           // the RetryAfter of the result is exact, or Never
}

var _ backend.Limiter = (*peeker)(nil)

// Take implements backend.Limiter.
func (p *peeker) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	counters := make([]backend.Result, len(hits))
	peeks := make([]backend.Hit, len(hits))
	for i, h := range hits {
		h.N = 0
		peeks[i] = h
	}
	p.o.Counters.Take(ctx, now, peeks, counters)
	p.peeks = make([]peek, len(hits))
	isCached := make([]bool, len(hits))
	anyDenied := false // whether an all-or-none hit is denied
	for i := range hits {
		p.peeks[i].emptyHitResult = counters[i]
		results[i], p.peeks[i].since, isCached[i] = p.cachedDenial(now, &hits[i])
		p.peeks[i].isRetryExact = isCached[i]
		anyDenied = anyDenied || isCached[i] && p.isAllOrNone(&hits[i])
	}
	cacheDenied := anyDenied
	chargedHits := map[string]int64{} // hits of this request, by counter
	for i := range hits {
		h := &hits[i]
		if isCached[i] {
			continue
		}
		isAllOrNone := p.isAllOrNone(h)
		charge := &plannedCharge{hit: h, emptyHitResult: counters[i], earlierHits: chargedHits[counterName(h)]}
		charge.chargesDenied = h.Limit.ChargeDenied && !isAllOrNone
		charge.isSkipped = cacheDenied && isAllOrNone
		results[i], p.peeks[i].isRetryExact = charge.nextResult()
		if results[i].Err == nil && !charge.isSkipped && (results[i].Allowed || charge.chargesDenied) {
			chargedHits[counterName(h)] += h.N
		}
		anyDenied = anyDenied || isAllOrNone && results[i].Err == nil && !results[i].Allowed
	}
	if anyDenied && !cacheDenied {
		p.undoCharges(hits, results, counters, chargedHits)
	}
}

// undoCharges changes the results of all-or-none hits, because one of them is denied.
func (p *peeker) undoCharges(hits []backend.Hit, results, counters []backend.Result, chargedHits map[string]int64) {
	for i := range hits {
		if h := &hits[i]; p.isAllOrNone(h) && results[i].Allowed {
			chargedHits[counterName(h)] -= h.N
		}
	}
	for i := range hits {
		if h := &hits[i]; p.isAllOrNone(h) {
			results[i].Remaining = counters[i].Remaining - chargedHits[counterName(h)]
		}
	}
}

func (p *peeker) isAllOrNone(h *backend.Hit) bool { return p.o.AllOrNone && h.AllOrNone() }

func counterName(h *backend.Hit) string { return h.Limit.Tag() + ":" + string(h.Key) }

// cachedDenial returns the denial of the first cache that denies h.
func (p *peeker) cachedDenial(now time.Time, h *backend.Hit) (r backend.Result, since time.Time, ok bool) {
	if h.Limit.Scope == limit.Instance {
		return r, since, false
	}
	for _, c := range p.o.Caches {
		if r, since, ok = c.PeekDenial(now, h); ok {
			return r, since, true
		}
	}
	return r, since, false
}

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
	if r.Err != nil || r.Source == backend.SourceFallback && r.Mode != limit.FailLocal {
		return r, true // there is no counter
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

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

// peek is what is known of one hit.
type peek struct {
	counter backend.Result // the answer to a hit of 0
	since   time.Time      // of the denial of a cache
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
	charged := map[string]int64{} // hits of this request, by counter
	anyDenied := false
	for i := range hits {
		h := &hits[i]
		p.peeks[i].counter = counters[i]
		counter := h.Limit.Tag() + ":" + string(h.Key)
		if r, since, ok := p.cachedDenial(now, h); ok {
			results[i], p.peeks[i].since = r, since
		} else {
			results[i] = nextResult(h, counters[i], charged[counter])
			if results[i].Allowed || h.Limit.ChargeDenied {
				charged[counter] += h.N
			}
		}
		anyDenied = anyDenied || h.AllOrNone() && results[i].Err == nil && !results[i].Allowed
	}
	if !p.o.AllOrNone || !anyDenied {
		return
	}
	for i := range hits {
		if h := &hits[i]; h.AllOrNone() && results[i].Allowed {
			results[i] = nextResult(h, counters[i], 0)
			results[i].Remaining += h.N // the hit is not charged
		}
	}
}

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

// nextResult returns the answer to h. counter is the answer to a hit of 0, and charged is
// the number of hits that the request charges to the counter before h. RetryAfter is a lower
// bound if the limit charges denied hits and has no aligned window.
func nextResult(h *backend.Hit, counter backend.Result, charged int64) backend.Result {
	r := counter
	if r.Err != nil {
		return r
	}
	if r.Source == backend.SourceFallback && r.Mode != limit.FailLocal {
		return r // the fallback decides without a counter
	}
	wasDenied := !r.Allowed
	r.Remaining -= charged
	r.Allowed, r.RetryAfter = h.N <= r.Remaining, 0
	if r.Allowed || h.Limit.ChargeDenied {
		r.Remaining -= h.N
	}
	switch {
	case r.Allowed:
	case h.N > h.Limit.Capacity():
		r.RetryAfter = limit.Never
	case wasDenied && counter.RetryAfter != 0 && charged == 0:
		r.RetryAfter = counter.RetryAfter
	default:
		r.RetryAfter = r.ResetAfter
	}
	return r
}

// emptyCounters is a backend.Limiter whose counters are always empty.
type emptyCounters struct{}

// Take implements backend.Limiter.
func (emptyCounters) Take(_ context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	for i, h := range hits {
		results[i] = backend.Result{Result: h.Limit.Take(new(limit.State), now.UnixMicro(), h.N)}
	}
}

package fallback

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// serveFailedHits reports the outcome of each hit to its breaker and decides the hits that
// the primary could not decide. An error stays if the caller caused the error, or if
// another Limiter would fail as well.
func (l *Limiter) serveFailedHits(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	var localBatch *backend.SubBatch
	var space [8]failedHit // requests with more hits allocate
	failed := space[:0]
	for i := range hits {
		h, r := &hits[i], &results[i]
		switch {
		case r.Err == nil:
			l.breakerOf(h).recordSuccess()
			continue
		case bypassedPrimary(r):
		case ctx.Err() != nil || !errors.Is(r.Err, backend.ErrUnavailable):
			continue
		case errors.Is(r.Err, backend.ErrOverloaded), errors.Is(r.Err, backend.ErrNotSent):
		default:
			l.breakerOf(h).recordFailure(now, r.Err)
		}
		failed = append(failed, failedHit{i, r.Err})
		if l.mode(h.Limit) != limit.FailLocal {
			*r = l.fixedAnswer(h, reasonOf(r.Err))
			continue
		}
		if localBatch == nil {
			localBatch = backend.NewSubBatch()
		}
		localBatch.AddWithPrefix(Namespace, i, l.localHit(h))
	}
	if len(failed) == 0 {
		return
	}
	l.o.Observer.Served(len(failed))
	if localBatch != nil {
		l.serveLocal(ctx, now, localBatch, hits, results)
		localBatch.Release()
	}
	l.record(hits, results, failed)
}

// failedHit is a hit that the primary could not decide, for the reason err.
type failedHit struct {
	index int
	err   error
}

// localHit returns the hit on the share of h's limit, for the secondary.
func (l *Limiter) localHit(h *backend.Hit) backend.Hit {
	return backend.Hit{Key: h.Key, Limit: l.share(h.Limit), N: h.N, HoldID: h.HoldID, Shadow: h.Shadow}
}

// fixedAnswer returns the answer to h if its mode is FailAllow or FailDeny.
func (l *Limiter) fixedAnswer(h *backend.Hit, reason backend.Reason) backend.Result {
	r := backend.Result{Source: backend.SourceFallback, Reason: reason, Mode: l.mode(h.Limit)}
	if r.Mode == limit.FailAllow {
		r.Allowed, r.Remaining = true, h.Limit.Capacity()
		return r
	}
	pause := maxProbePause.Microseconds()
	r.Allowed, r.ResetAfter = h.N < 0, pause
	if !r.Allowed {
		r.RetryAfter = pause
	}
	return r
}

// serveLocal lets the secondary decide the hits of localBatch, which is a part of hits.
func (l *Limiter) serveLocal(ctx context.Context, now time.Time, localBatch *backend.SubBatch, hits []backend.Hit, results []backend.Result) {
	for j, i := range localBatch.Index {
		l.startFromLastCount(now, &hits[i], &localBatch.Hits[j])
	}
	localBatch.Take(ctx, now, l.o.Secondary)
	for j, i := range localBatch.Index {
		r := localBatch.Results[j]
		r.Source, r.Reason, r.Mode = backend.SourceFallback, reasonOf(results[i].Err), limit.FailLocal
		results[i] = r
	}
}

// reasonOf returns the reason of a decision without the primary, which failed with err.
func reasonOf(err error) backend.Reason {
	switch {
	case err == errBreakerOpen: //nolint:errorlint // it is never wrapped
		return backend.ReasonBreakerOpen
	case errors.Is(err, backend.ErrOverloaded): // even if the answer is late
		return backend.ReasonOverload
	case errors.Is(err, backend.ErrLate):
		return backend.ReasonLate
	}
	return backend.ReasonOutage
}

func (l *Limiter) mode(lim *limit.Limit) limit.FailureMode {
	if lim.OnBackendFailure != limit.FailDefault {
		return lim.OnBackendFailure
	}
	return l.o.Mode
}

// share returns the part of lim that the secondary grants.
func (l *Limiter) share(lim *limit.Limit) *limit.Limit {
	return lim.Scaled(cmp.Or(lim.FallbackRatio, l.o.Ratio))
}

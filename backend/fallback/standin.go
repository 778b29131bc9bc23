package fallback

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// standIn decides what the primary could not, and tells the parts how it went. An
// error stays if it is the caller's doing, or nothing that another Limiter mends.
func (l *Limiter) standIn(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	var local *backend.SubBatch
	for i := range hits {
		h, r := &hits[i], &results[i]
		switch {
		case r.Err == nil:
			l.partOf(h).succeeded()
			continue
		case notAsked(r):
		case ctx.Err() != nil || !errors.Is(r.Err, backend.ErrUnavailable):
			continue
		case errors.Is(r.Err, backend.ErrOverloaded):
		default:
			l.partOf(h).failed(r.Err)
		}
		l.served.Add(1)
		switch l.mode(h.Limit) {
		case limit.FailAllow:
			*r = backend.Result{Source: backend.SourceFallback, Result: limit.Result{Allowed: true, Remaining: h.Limit.Capacity()}}
		case limit.FailDeny:
			again := l.o.ProbeAtMost.Microseconds()
			*r = backend.Result{Source: backend.SourceFallback, Result: limit.Result{Allowed: h.N < 0, ResetAfter: again}}
			if !r.Allowed {
				r.RetryAfter = again
			}
		default:
			if local == nil {
				local = l.calls.Get().(*backend.SubBatch)
			}
			local.AddIn(Namespace, i, backend.Hit{Key: h.Key, Limit: l.shares.Of(h.Limit), N: h.N, Shadow: h.Shadow})
		}
	}
	if local != nil {
		l.takeLocal(ctx, now, local, hits, results)
		l.release(local)
	}
}

// takeLocal has the secondary decide some of the hits. What it admits goes to the
// ledger if the primary was not asked; else the primary may have charged it.
func (l *Limiter) takeLocal(ctx context.Context, now time.Time, local *backend.SubBatch, hits []backend.Hit, results []backend.Result) {
	local.Take(ctx, now, l.o.Secondary)
	for j, i := range local.Index {
		h, r := &hits[i], local.Results[j]
		if notAsked(&results[i]) && h.N > 0 && r.Err == nil && r.Allowed {
			l.partOf(h).ledger.add(h.Key, h.Limit, h.N)
		}
		r.Source = backend.SourceFallback
		results[i] = r
	}
}

func (l *Limiter) mode(lim *limit.Limit) limit.FailureMode {
	if lim.OnBackendFailure != limit.FailDefault {
		return lim.OnBackendFailure
	}
	return l.o.Mode
}

// share is what the secondary grants of lim.
func (l *Limiter) share(lim *limit.Limit) *limit.Limit {
	return lim.Scaled(cmp.Or(lim.FallbackRatio, l.o.Ratio))
}

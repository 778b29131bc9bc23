package fallback

import (
	"context"
	"errors"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// Peeker returns a backend.Limiter that answers hits of 0 as l would. It changes no breaker
// and counts no decision. All its hits must have an N of 0.
func (l *Limiter) Peeker() backend.Limiter { return peeker{l} }

type peeker struct{ *Limiter }

// Take implements backend.Limiter.
func (l peeker) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	backend.TakePart(ctx, now, l.o.Primary, hits, results, func(i int) bool {
		isOpen := l.breakerOf(&hits[i]).isOpen()
		if isOpen {
			results[i] = backend.Result{Err: errBreakerOpen}
		}
		return !isOpen
	})
	localBatch := backend.NewSubBatch()
	defer localBatch.Release()
	for i := range hits {
		h, r := &hits[i], &results[i]
		switch {
		case r.Err == nil:
		case !bypassedPrimary(r) && (ctx.Err() != nil || !errors.Is(r.Err, backend.ErrUnavailable)):
		case l.mode(h.Limit) == limit.FailLocal:
			localBatch.AddWithPrefix(Namespace, i, l.localHit(h))
		default:
			*r = l.fixedAnswer(h, reasonOf(r.Err))
		}
	}
	l.serveLocal(ctx, now, localBatch, hits, results)
}

// FailingSince returns the time since which the breaker of h is not closed, or the zero Time.
func (l *Limiter) FailingSince(h *backend.Hit) time.Time {
	if s := l.breakerOf(h).status(); s.State != Closed {
		return s.Since
	}
	return time.Time{}
}

package fallback

import (
	"context"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// Peek implements backend.Layer. It changes no breaker and counts no decision.
func (l *Limiter) Peek(ctx context.Context, now time.Time, hits []backend.Hit, peeks []backend.Peek) {
	backend.PeekWith(ctx, now, l.takePeeks, hits, peeks)
}

// Forget implements backend.Layer. A reset of the counters does not concern the secondary.
func (l *Limiter) Forget(*backend.Hit) {}

// takePeeks answers hits of 0 as Take would.
func (l *Limiter) takePeeks(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	l.askPrimary(ctx, now, hits, results)
	localBatch := backend.NewSubBatch()
	defer localBatch.Release()
	for i := range hits {
		h, r := &hits[i], &results[i]
		switch {
		case r.Err == nil:
		case !serves(ctx, backend.ReasonOf(r.Err)):
		case l.mode(h.Limit) == limit.FailLocal:
			localBatch.AddWithPrefix(Namespace, i, l.localHit(h))
		default:
			*r = l.fixedAnswer(h, backend.ReasonOf(r.Err))
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

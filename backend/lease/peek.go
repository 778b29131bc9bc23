package lease

import (
	"context"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// Peek implements backend.Layer.
func (l *Limiter) Peek(ctx context.Context, now time.Time, hits []backend.Hit, peeks []backend.Peek) {
	l.options.Next.Peek(ctx, now, hits, peeks)
	for i := range hits {
		if r := &peeks[i].Result; hasLease(hits[i].Limit) && r.Err == nil && r.Source.IsBackend() {
			l.correctPeek(l.micros(now), hits[i], r)
		}
	}
}

// correctPeek adds the permits of h's counter to r, the answer to h with an N of 0.
func (l *Limiter) correctPeek(now int64, h backend.Hit, r *backend.Result) {
	s, e := l.lockLease(&h)
	defer s.mu.Unlock()
	if e != nil && !e.hasEnded(now) {
		h.N = 0
		e.addPermits(&h, &r.Result)
	}
}

// HeldPermits returns the permits that this replica holds of h's counter.
func (l *Limiter) HeldPermits(now time.Time, h *backend.Hit) int64 {
	s, e := l.lockLease(h)
	defer s.mu.Unlock()
	if e != nil && !e.hasEnded(l.micros(now)) {
		return e.permits
	}
	return 0
}

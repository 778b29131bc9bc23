package lease

import (
	"context"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// Peeker returns a backend.Limiter that answers hits of 0 as l would, with next in place of
// Next. All its hits must have an N of 0.
func (l *Limiter) Peeker(next backend.Limiter) backend.Limiter { return peeker{l, next} }

type peeker struct {
	*Limiter
	next backend.Limiter
}

// Take implements backend.Limiter.
func (p peeker) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	p.next.Take(ctx, now, hits, results)
	for i := range hits {
		if r := &results[i]; hasLease(hits[i].Limit) && r.Err == nil && r.Source.IsBackend() {
			p.correctPeek(p.micros(now), &hits[i], r)
		}
	}
}

// correctPeek adds the permits of h's counter to r.
func (l *Limiter) correctPeek(now int64, h *backend.Hit, r *backend.Result) {
	id := l.seeds.ID(h.Key, h.Limit.Tag())
	s := l.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.leases[id]; e != nil && !e.hasEnded(now) {
		e.addPermits(h, &r.Result)
	}
}

// HeldPermits returns the permits that this replica holds of h's counter.
func (l *Limiter) HeldPermits(now time.Time, h *backend.Hit) int64 {
	id := l.seeds.ID(h.Key, h.Limit.Tag())
	s := l.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.leases[id]; e != nil && !e.hasEnded(l.micros(now)) {
		return e.permits
	}
	return 0
}

package lease

import (
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

const shardCount = 64

// shard is a part of the leases.
type shard struct {
	mu     sync.Mutex // guards all fields, and the leases
	leases map[fingerprint.ID]*lease
	closed bool // no permits are taken or used
	stats  Stats
	_      [32]byte // keeps the mutexes in separate cache lines
}

// reservation has the permits that a hit has reserved.
type reservation struct {
	shard   *shard // nil if the hit can't use permits
	lease   *lease // nil if there is none
	permits int64
	epoch   uint32 // of the lease
	isWhole bool   // the permits admit the hit
}

func (l *Limiter) shardOf(id fingerprint.ID) *shard { return &l.shards[id.Hi%shardCount] }

// reserve reserves permits for h. If there are enough, it sets the result. isOnly reports
// whether h is the only hit of its call.
func (l *Limiter) reserve(now int64, h *backend.Hit, result *backend.Result, isOnly bool) (r reservation) {
	if !hasLease(h.Limit) {
		return r
	}
	id := l.seeds.ID(h.Key, h.Limit.Tag())
	s := l.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return r
	}
	e := s.leases[id]
	if e == nil {
		if h.N <= 0 || len(s.leases) >= l.o.MaxLeases/shardCount+1 {
			return r
		}
		e = newLease(h, now)
		s.leases[id] = e
	}
	if e.limit != h.Limit {
		l.changeLimit(e, h.Limit, now)
	}
	if e.hasEnded(now) {
		l.endWindow(s, e, now)
	}
	r = reservation{shard: s, lease: e, epoch: e.epoch}
	if h.N <= 0 || h.N > h.Limit.Capacity() {
		return r
	}
	e.countDemand(now, h.N)
	r.permits = min(h.N, e.permits)
	e.permits -= r.permits
	e.reserved += r.permits
	if r.isWhole = r.permits == h.N; r.isWhole {
		s.stats.Used += h.N
		if isOnly { // nothing can release the permits again
			e.reserved -= r.permits
			s.stats.SavedTrips++
		}
		result.Result, result.Source, result.Err = e.answer(now), backend.SourceLease, nil
	}
	l.refillIfLow(s, e, now)
	return r
}

// settleHit ends a reservation of h. isUsed reports whether h was charged.
func (l *Limiter) settleHit(now int64, h *backend.Hit, result *backend.Result, r *reservation, isUsed bool) {
	s, e := r.shard, r.lease
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.N <= -limit.MaxHits { // a reset
		l.forget(s, e, now)
		return
	}
	switch {
	case isUsed && !r.isWhole:
		s.stats.Used += r.permits
	case !isUsed && r.isWhole:
		s.stats.Used -= r.permits
		result.Remaining += r.permits
	}
	isValid := r.epoch == e.epoch
	if isValid {
		e.reserved -= r.permits
	}
	switch {
	case isUsed:
	case isValid:
		e.permits += r.permits
	default:
		s.stats.Lapsed += r.permits
	}
	if r.isWhole || result.Err != nil || !result.Source.IsBackend() {
		return
	}
	e.observe(now, &result.Result)
	e.addPermits(h, &result.Result)
	if !s.closed {
		l.refillIfLow(s, e, now)
	}
}

// changeLimit makes e a lease of lim. It returns the permits of another limit.
func (l *Limiter) changeLimit(e *lease, lim *limit.Limit, now int64) {
	if e.limit.Spec != lim.Spec {
		l.returnLater(e, now)
		e.retryAt, e.remaining, e.permitLimit, e.budget = now+changePause, 0, nil, nil
	}
	e.limit = lim
}

// endWindow drops the permits of a window that has ended. Tokens go back to their bucket.
func (l *Limiter) endWindow(s *shard, e *lease, now int64) {
	if e.limit.Algorithm.CountsWindows() {
		s.stats.Lapsed += e.drop()
		return
	}
	l.returnLater(e, now)
}

// forget drops the permits of e after a reset, which has forgotten their charges. It gives back
// the allowance.
func (l *Limiter) forget(s *shard, e *lease, now int64) {
	s.stats.Lapsed += e.permits
	e.permits = 0
	if !s.closed { // else Close gives the allowance back
		l.returnLater(e, now)
	}
}

// Invalidate drops the permits of h's counter. It is called after a reset.
func (l *Limiter) Invalidate(h *backend.Hit) {
	id := l.seeds.ID(h.Key, h.Limit.Tag())
	s := l.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.leases[id]; e != nil {
		l.forget(s, e, l.micros(time.Now()))
	}
}

// InvalidateAll drops all permits.
func (l *Limiter) InvalidateAll() {
	now := l.micros(time.Now())
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		for _, e := range s.leases {
			l.forget(s, e, now)
		}
		s.mu.Unlock()
	}
}

package lease

import (
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/base/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

const stripeCount = 64

type stripe struct {
	mu       sync.Mutex // guards all fields, and the fields of the leases
	leases   map[fingerprint.ID]*lease
	isClosed bool // hits no longer take or use permits
	stats    Stats
	_        [32]byte // keeps the mutexes in separate cache lines
}

// reservation has the permits that one hit has reserved until the decision about its call.
type reservation struct {
	stripe    *stripe // nil if the hit can't use permits
	lease     *lease  // nil if the counter has no lease
	permits   int64
	epoch     uint32 // the epoch of the lease at the time of the reservation
	admitsHit bool   // the permits are enough for the hit
}

func (l *Limiter) stripeOf(id fingerprint.ID) *stripe { return &l.stripes[id.Hi%stripeCount] }

// lockLease locks the stripe of h's counter, and returns it with the lease of the counter, which can be nil.
func (l *Limiter) lockLease(h *backend.Hit) (*stripe, *lease) {
	id := l.seeds.ID(h.Key, h.Limit.Tag())
	s := l.stripeOf(id)
	s.mu.Lock()
	return s, s.leases[id]
}

// reserve reserves permits for h, and sets the result if the permits are enough. isOnlyHit means that the call has no
// other hit.
func (l *Limiter) reserve(now int64, h *backend.Hit, result *backend.Result, isOnlyHit bool) (r reservation) {
	if !hasLease(h.Limit) {
		return r
	}
	s, e := l.lockLease(h)
	defer s.mu.Unlock()
	if s.isClosed {
		return r
	}
	if e == nil {
		if h.N <= 0 || len(s.leases) > maxLeases/stripeCount {
			return r
		}
		e = newLease(h, now)
		s.leases[l.seeds.ID(h.Key, h.Limit.Tag())] = e
	}
	if e.limit != h.Limit {
		l.changeLimit(e, h.Limit, now)
	}
	if e.hasEnded(now) {
		l.endWindow(s, e, now)
	}
	r = reservation{stripe: s, lease: e, epoch: e.epoch}
	if h.N <= 0 || h.N > h.Limit.Capacity() {
		return r
	}
	e.countDemand(now, h.N)
	r.permits = min(h.N, e.permits)
	e.permits -= r.permits
	e.reservedPermits += r.permits
	r.admitsHit = r.permits == h.N
	if r.admitsHit {
		s.stats.UsedPermits += h.N
		if isOnlyHit { // no other hit can deny the call
			e.reservedPermits -= r.permits
			s.stats.SavedTrips++
		}
		result.Result, result.Source, result.Err = e.answer(now), backend.SourceLease, nil
	}
	l.refillIfLow(s, e, now)
	return r
}

// settleHit ends the reservation r of h. isUsed means that h was admitted, so the permits are used up.
func (l *Limiter) settleHit(now int64, h *backend.Hit, result *backend.Result, r *reservation, isUsed bool) {
	s, e := r.stripe, r.lease
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.N <= -limit.MaxHits { // a reset
		l.dropAfterReset(s, e, now)
		return
	}
	switch {
	case isUsed && !r.admitsHit:
		s.stats.UsedPermits += r.permits
	case !isUsed && r.admitsHit:
		s.stats.UsedPermits -= r.permits
		result.Remaining += r.permits
	}
	hasPermits := r.epoch == e.epoch // the lease still has the reserved permits
	if hasPermits {
		e.reservedPermits -= r.permits
	}
	switch {
	case isUsed:
	case hasPermits:
		e.permits += r.permits
	default:
		s.stats.LapsedPermits += r.permits
	}
	if r.admitsHit || result.Err != nil || !result.Source.IsBackend() {
		return
	}
	e.recordAnswer(now, &result.Result)
	e.addPermits(h, &result.Result)
	if !s.isClosed {
		l.refillIfLow(s, e, now)
	}
}

// changeLimit sets the limit of e. If the Spec of the new limit differs, e gives back its permits and starts again.
//
// The refund must lower the counter by as much as the charge of the permits raised it. When the limit of a bucket with a
// burst changes, the bucket keeps the number of its spent tokens, and the refund uses the new limit. Under an old limit
// with a smaller burst, the refund would forget tokens that others have spent. A bucket without a burst keeps the spent
// part of its capacity. There the refund uses the old limit, under which the permits were charged.
func (l *Limiter) changeLimit(e *lease, lim *limit.Limit, now int64) {
	if e.limit.Spec != lim.Spec {
		if lim.HasBurst() {
			e.limit = lim
		}
		l.giveBackInBackground(e, now)
		e.retryAt, e.remaining, e.budget = now+changePause, 0, nil
	}
	e.limit = lim
}

// endWindow ends the window of e. It drops the permits of a fixed window, and gives the permits of a token bucket back.
func (l *Limiter) endWindow(s *stripe, e *lease, now int64) {
	if e.limit.Algorithm.CountsByWindow() {
		s.stats.LapsedPermits += e.dropPermits()
		return
	}
	l.giveBackInBackground(e, now)
}

// dropAfterReset drops the permits of e, because a reset has forgotten their charges. It gives back the allowance.
func (l *Limiter) dropAfterReset(s *stripe, e *lease, now int64) {
	s.stats.LapsedPermits += e.permits
	e.permits = 0
	if !s.isClosed { // Close gives the allowance back
		l.giveBackInBackground(e, now)
	}
}

// Forget implements backend.Layer. It drops the permits of the counters.
func (l *Limiter) Forget(h *backend.Hit) {
	now := l.micros(time.Now())
	if h != nil {
		s, e := l.lockLease(h)
		if e != nil {
			l.dropAfterReset(s, e, now)
		}
		s.mu.Unlock()
	} else {
		l.forEachStripe(func(s *stripe) {
			for _, e := range s.leases {
				l.dropAfterReset(s, e, now)
			}
		})
	}
	l.options.Next.Forget(h)
}

func (l *Limiter) forEachStripe(f func(*stripe)) {
	for i := range l.stripes {
		s := &l.stripes[i]
		s.mu.Lock()
		f(s)
		s.mu.Unlock()
	}
}

// Stats counts what leases did.
type Stats struct {
	Leases      int64 // counters with a lease, even if the lease has no permits
	HeldPermits int64 // permits that this replica holds

	// Sums since New. While no trip is in flight, TakenPermits is the sum of HeldPermits and the next three fields.
	TakenPermits    int64 // permits taken from the shared counters
	UsedPermits     int64 // permits that admitted a hit
	ReturnedPermits int64 // permits that were given back to the shared counters
	LapsedPermits   int64 // permits that expired, or that a failed trip has lost

	SavedTrips int64 // calls that needed no trip because of permits
}

// Stats returns the sums over all leases.
func (l *Limiter) Stats() (sum Stats) {
	l.forEachStripe(func(s *stripe) {
		sum.Leases += int64(len(s.leases))
		for _, e := range s.leases {
			sum.HeldPermits += e.permits
		}
		sum.TakenPermits += s.stats.TakenPermits
		sum.UsedPermits += s.stats.UsedPermits
		sum.ReturnedPermits += s.stats.ReturnedPermits
		sum.LapsedPermits += s.stats.LapsedPermits
		sum.SavedTrips += s.stats.SavedTrips
	})
	return sum
}

func (l *Limiter) countReturn(g *permitReturn) {
	s, _ := l.lockLease(&backend.Hit{Key: g.key, Limit: g.limit})
	if g.isLost {
		s.stats.LapsedPermits += g.permits
	} else {
		s.stats.ReturnedPermits += g.permits
	}
	s.mu.Unlock()
}

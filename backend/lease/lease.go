// Package lease admits hits with permits. A permit is a hit that this replica has charged in advance. This replica takes
// many permits from a shared counter in one trip, and a hit with a permit needs no trip. Only limits with a lease budget
// have leases. docs/glossary.md explains the terms.
//
// The budget of a counter is the number of permits that all replicas together may hold in a window. The backend
// has a second counter for the budget. Its key starts with Namespace. Each replica takes its allowance from the
// budget, and never holds more permits than its allowance.
//
// Permits are charged before they are used, so leases never admit more than the limit. A replica that is killed
// loses at most its allowance, which stays charged to the budget until the window ends. So the lost permits of a
// window are at most the budget.
package lease

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/base/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

// Namespace is the prefix of the keys of budgets. No domain has a colon, so no other counter has this prefix.
const Namespace = "lease:"

// Options configure a Limiter. Next and Source are required.
type Options struct {
	// Next decides the hits without permits.
	Next backend.Layer

	// Source has the shared counters with the permits. It has no fallback.
	Source backend.Limiter

	// IsFailing returns true while Source can't decide this hit. Leases then take no permits. nil means that Source
	// never fails.
	IsFailing func(*backend.Hit) bool
}

// maxLeases bounds the counters with a lease. The hits of further counters go to Next.
const maxLeases = 1 << 16

// Limiter is a backend.Layer that admits hits with permits, and sends all other hits to Options.Next.
type Limiter struct {
	options   Options
	seeds     fingerprint.Seeds
	createdAt time.Time
	stripes   [stripeCount]stripe
	ctx       context.Context // the context of background trips
	cancel    context.CancelFunc
	workers   sync.WaitGroup

	sweepMutex sync.Mutex // only one Sweep or Close runs at a time

	// spawn runs a function in the background. Tests replace spawn.
	spawn func(func())
}

// New returns a Limiter without permits. The caller should call Run, which gives back idle permits, and Close at the end.
func New(o Options) *Limiter {
	if o.IsFailing == nil {
		o.IsFailing = func(*backend.Hit) bool { return false }
	}
	l := &Limiter{options: o, seeds: fingerprint.NewSeeds(), createdAt: time.Now()}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.spawn = l.workers.Go
	for i := range l.stripes {
		l.stripes[i].leases = map[fingerprint.ID]*lease{}
	}
	return l
}

// micros returns the microseconds from New to now. A change of this machine's clock has no effect on the result.
func (l *Limiter) micros(now time.Time) int64 { return now.Sub(l.createdAt).Microseconds() }

func hasLease(lim *limit.Limit) bool { return lim.MaxLeasePermits() > 0 }

// Take implements backend.Limiter.
func (l *Limiter) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	hasAnyLease := false
	for i := range hits {
		hasAnyLease = hasAnyLease || hasLease(hits[i].Limit)
	}
	if !hasAnyLease {
		l.options.Next.Take(ctx, now, hits, results)
		return
	}
	var space [8]reservation // requests with more hits allocate
	reservations := space[:0]
	hitsForNext := 0 // the number of hits that Next decides
	micros := l.micros(now)
	for i := range hits {
		r := l.reserve(micros, &hits[i], &results[i], len(hits) == 1)
		reservations = append(reservations, r)
		if !r.admitsHit {
			hitsForNext++
		}
	}
	switch {
	case hitsForNext > 0:
		l.sendToNext(ctx, now, hits, results, reservations)
	case len(hits) == 1:
		return
	default:
		s := reservations[0].stripe
		s.mu.Lock()
		s.stats.SavedTrips++
		s.mu.Unlock()
	}
	l.settle(micros, hits, results, reservations)
}

// sendToNext sends the hits without enough permits to Next. A hit of 5 with 2 permits goes to Next as a hit of 3.
func (l *Limiter) sendToNext(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result, reservations []reservation) {
	if !slices.ContainsFunc(reservations, func(r reservation) bool { return r.permits > 0 }) {
		l.options.Next.Take(ctx, now, hits, results)
		return
	}
	batch := backend.NewSubBatch()
	defer batch.Release()
	for i, h := range hits {
		if r := &reservations[i]; !r.admitsHit {
			h.N -= r.permits
			batch.Add(i, h)
		}
	}
	batch.Take(ctx, now, l.options.Next)
	batch.CopyResults(results)
}

// settle ends all reservations. It uses up the permits of admitted hits, and frees all other reserved permits.
func (l *Limiter) settle(now int64, hits []backend.Hit, results []backend.Result, reservations []reservation) {
	isGroupDenied := backend.IsGroupDenied(hits, results)
	for i := range hits {
		r := &reservations[i]
		if r.stripe == nil {
			continue
		}
		isInDeniedGroup := isGroupDenied && hits[i].IsInGroup()
		isUsed := results[i].Err == nil && results[i].Allowed && !isInDeniedGroup
		l.settleHit(now, &hits[i], &results[i], r, isUsed)
	}
}

// Peek implements backend.Layer.
func (l *Limiter) Peek(ctx context.Context, now time.Time, hits []backend.Hit, peeks []backend.Peek) {
	l.options.Next.Peek(ctx, now, hits, peeks)
	for i := range hits {
		if r := &peeks[i].Result; hasLease(hits[i].Limit) && r.Err == nil && r.Source.IsBackend() {
			l.correctPeek(l.micros(now), hits[i], r)
		}
	}
}

// correctPeek adds the permits of h's counter to r. r is the answer of Next to a peek of the counter.
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

// Package lease admits hits with permits that this replica has taken from the shared counters
// in batches. Such a hit needs no trip to the backend. Only limits with Limit.Lease have
// leases.
//
// Terms:
//
//   - permit: a hit that is charged to the shared counter and that this replica has not
//     used yet;
//   - lease: the permits of one counter that this replica holds;
//   - budget: the permits that all replicas together may hold of a counter in a window. A
//     counter of its own in the backend counts them, under Namespace;
//   - allowance: the part of the budget that this replica has taken. A lease never has more
//     permits than its allowance.
//
// Permits are charged before they are used, so leases never admit more than the limit. A lost
// replica loses at most its allowance, which stays charged to the budget until the window ends.
// So all lost permits of a window are at most its budget.
package lease

import (
	"context"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

// Namespace is the prefix of the keys of budgets. The colon separates them from all domains.
const Namespace = "lease:"

// Options configure a Limiter. Next and Source are required.
type Options struct {
	// Next decides the hits for which there are no permits.
	Next backend.Limiter

	// Source has the shared counters. Permits are taken from Source and returned to it. An
	// answer of Source must come from the shared counter, so Source has no fallback.
	Source backend.Limiter

	// IsFailing reports whether Source fails at the moment for a hit. No permits are taken
	// then. It can be nil.
	IsFailing func(*backend.Hit) bool

	// AllOrNone must have the value that Next has. If a hit is denied, the permits of the
	// other all-or-none hits of its request stay unused.
	AllOrNone bool

	// MaxLeases bounds the counters with a lease; default 65,536. The hits of further
	// counters go to Next.
	MaxLeases int
}

// Limiter is a backend.Limiter that admits hits with permits, and sends all others to another
// Limiter. It is safe for concurrent use.
type Limiter struct {
	o       Options
	seeds   fingerprint.Seeds
	start   time.Time
	shards  [shardCount]shard
	ctx     context.Context // of background trips
	cancel  context.CancelFunc
	workers sync.WaitGroup

	sweeping sync.Mutex // held by Sweep and by Close

	// spawn runs a function in the background. Tests replace it.
	spawn func(func())
}

var _ backend.Limiter = (*Limiter)(nil)

// New returns a Limiter without permits. The caller should let Run return idle permits, and
// must call Close at the end.
func New(o Options) *Limiter {
	if o.MaxLeases <= 0 {
		o.MaxLeases = 1 << 16
	}
	if o.IsFailing == nil {
		o.IsFailing = func(*backend.Hit) bool { return false }
	}
	l := &Limiter{o: o, seeds: fingerprint.NewSeeds(), start: time.Now()}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.spawn = l.workers.Go
	for i := range l.shards {
		l.shards[i].leases = map[fingerprint.ID]*lease{}
	}
	return l
}

// micros returns now as the microseconds since New. If now has a monotonic time, a change of
// this machine's clock has no effect.
func (l *Limiter) micros(now time.Time) int64 { return now.Sub(l.start).Microseconds() }

// hasLease reports whether hits on this limit can use permits.
func hasLease(lim *limit.Limit) bool { return lim.LeasePermits() > 0 }

// Take implements backend.Limiter.
func (l *Limiter) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	isLeased := false
	for i := range hits {
		isLeased = isLeased || hasLease(hits[i].Limit)
	}
	if !isLeased {
		l.o.Next.Take(ctx, now, hits, results)
		return
	}
	var space [8]reservation // requests with more hits allocate
	reservations := space[:0]
	others := 0 // hits that Next decides
	micros := l.micros(now)
	for i := range hits {
		r := l.reserve(micros, &hits[i], &results[i], len(hits) == 1)
		reservations = append(reservations, r)
		if !r.isWhole {
			others++
		}
	}
	switch {
	case others > 0:
		l.takeOthers(ctx, now, hits, results, reservations)
	case len(hits) == 1:
		return
	default:
		reservations[0].shard.countSavedTrip()
	}
	l.settle(micros, hits, results, reservations)
}

// takeOthers sends the hits without enough permits to Next. A hit with some permits asks for
// the rest only.
func (l *Limiter) takeOthers(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result, reservations []reservation) {
	unchanged := true
	for i := range reservations {
		unchanged = unchanged && reservations[i].permits == 0
	}
	if unchanged {
		l.o.Next.Take(ctx, now, hits, results)
		return
	}
	batch := backend.NewSubBatch()
	defer batch.Release()
	for i, h := range hits {
		if r := &reservations[i]; !r.isWhole {
			h.N -= r.permits
			batch.Add(i, h)
		}
	}
	batch.Take(ctx, now, l.o.Next)
	batch.CopyResults(results)
}

// settle uses or releases the reserved permits after Next has decided the other hits.
func (l *Limiter) settle(now int64, hits []backend.Hit, results []backend.Result, reservations []reservation) {
	isDenied := false // an all-or-none hit is denied
	for i := range hits {
		isDenied = isDenied || l.o.AllOrNone && hits[i].AllOrNone() && results[i].Err == nil && !results[i].Allowed
	}
	for i := range hits {
		r := &reservations[i]
		if r.shard == nil {
			continue
		}
		isUsed := results[i].Err == nil && results[i].Allowed && (!isDenied || !hits[i].AllOrNone())
		l.settleHit(now, &hits[i], &results[i], r, isUsed)
	}
}

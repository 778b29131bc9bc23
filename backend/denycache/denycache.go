// Package denycache remembers denials. A caller who comes again before the hits can pass
// gets the remembered answer, and the backend gets no call. The local cache of
// envoyproxy/ratelimit does the same for fixed windows only. This cache serves every
// algorithm.
//
// The answers are those of the wrapped Limiter, with three exceptions:
//
//   - A refund through another replica takes effect here when the denial ends. A refund
//     through this replica and a raised limit take effect at once.
//   - A remembered denial is not charged, even if the limit charges denied hits. If the
//     algorithm resets at once, the charge would delay nobody. With another algorithm the
//     charge would prolong the denial. So the cache then remembers no denials of limits
//     that charge denied hits.
//   - RetryAfter comes from the remembered denial. If a later call asks for more hits
//     than the denied call, RetryAfter is the earliest time at which they might pass.
//
// Denials by the fallback are not remembered. Neither are denials of limits with holds, because a
// release through another replica can end such a denial at any time.
package denycache

import (
	"context"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

// Options configure a Limiter.
type Options struct {
	// SizeBytes is the memory of the cache, which New allocates. A denial takes 64
	// bytes. The minimum is 4096.
	SizeBytes int

	// AllOrNone must have the value that the wrapped Limiter has. If it is set and the
	// cache denies an all-or-none hit, no all-or-none hit of the batch is charged. See
	// backend.Hit.AllOrNone.
	AllOrNone bool

	// Observer receives events. It can be nil.
	Observer Observer
}

// Observer receives the events of a Limiter. Its methods must return at once and must
// not use the Limiter.
type Observer interface {
	// Denied is called for each hit that the cache denies. It must not keep the hit.
	Denied(*backend.Hit)
}

// Limiter is a backend.Limiter that denies hits from its cache and sends all others to
// another Limiter. It is safe for concurrent use.
type Limiter struct {
	options Options
	next    backend.Limiter
	table   *table
}

var _ backend.Limiter = (*Limiter)(nil)

// New returns a Limiter with an empty cache in front of next.
func New(next backend.Limiter, o Options) *Limiter {
	return &Limiter{options: o, next: next, table: newTable(o.SizeBytes)}
}

// Invalidate drops the denial of h's counter. It is called after a reset.
func (l *Limiter) Invalidate(h *backend.Hit) {
	l.table.invalidate(l.table.seeds.ID(h.Key, h.Limit.Tag()))
}

// InvalidateAll drops all denials.
func (l *Limiter) InvalidateAll() { l.table.invalidateAll() }

// PeekDenial returns the denial that the cache would answer to h, and the time of the denial.
// ok is false if the cache would not answer. PeekDenial changes nothing.
func (l *Limiter) PeekDenial(now time.Time, h *backend.Hit) (r backend.Result, since time.Time, ok bool) {
	id, micros := l.table.seeds.ID(h.Key, h.Limit.Tag()), now.UnixMicro()
	s, set := l.table.lock(id)
	defer s.mu.Unlock()
	for i := range set {
		if e := &set[i]; h.N >= 0 && e.id == id && e.denies(h, micros) {
			return backend.Result{Result: e.result(h, micros), Source: backend.SourceDenyCache}, time.UnixMicro(e.start), true
		}
	}
	return r, since, false
}

// cacheLookup is the answer of the cache for one hit.
type cacheLookup struct {
	id         fingerprint.ID
	generation uint32 // of the shard at the time of the lookup
	isDenied   bool
}

// Take implements backend.Limiter. All calls must take now from
// one clock.
func (l *Limiter) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	var space [16]cacheLookup // requests with more hits allocate
	lookups := space[:0]
	nowMicros := now.UnixMicro()
	deniedCount, batchDenied := 0, false
	for i := range hits {
		h := &hits[i]
		lookup := cacheLookup{id: l.table.seeds.ID(h.Key, h.Limit.Tag())}
		if h.N < 0 {
			l.table.invalidate(lookup.id)
		} else {
			var r limit.Result
			r, lookup.isDenied, lookup.generation = l.table.find(lookup.id, h, nowMicros)
			if lookup.isDenied {
				// Separate assignments are 10 ns faster than one of a composite.
				results[i].Result, results[i].Source, results[i].Err = r, backend.SourceDenyCache, nil
				deniedCount++
				batchDenied = batchDenied || l.options.AllOrNone && h.AllOrNone()
				if l.options.Observer != nil {
					l.options.Observer.Denied(h)
				}
			}
		}
		lookups = append(lookups, lookup)
	}
	switch deniedCount {
	case 0:
		l.next.Take(ctx, now, hits, results)
	case len(hits):
		return
	default:
		l.takeOthers(ctx, now, hits, results, lookups, batchDenied)
	}
	for i := range hits {
		h, lookup, r := &hits[i], &lookups[i], &results[i]
		switch {
		case h.N < 0: // another Take may have added a denial that is older than the refund
			l.table.invalidate(lookup.id)
		case lookup.isDenied || r.Err != nil || r.Allowed || r.Degraded() || h.Limit.Algorithm.HasHolds():
		case batchDenied && h.AllOrNone(): // next has only seen a peek
		default:
			l.table.add(lookup.id, lookup.generation, h, r.Result, nowMicros)
		}
	}
}

// takeOthers sends to next only the hits that the cache doesn't deny. If batchDenied is
// set, takeOthers sends all-or-none hits as peeks.
func (l *Limiter) takeOthers(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result, lookups []cacheLookup, batchDenied bool) {
	batch := backend.NewSubBatch()
	defer batch.Release()
	for i, h := range hits {
		if lookups[i].isDenied {
			continue
		}
		if batchDenied && h.AllOrNone() {
			h.N = 0
		}
		batch.Add(i, h)
	}
	batch.Take(ctx, now, l.next)
	for j, i := range batch.Index {
		if h, r := &hits[i], &batch.Results[j]; batchDenied && h.AllOrNone() && r.Err == nil {
			r.Result = h.Limit.FromPeek(r.Result, h.N)
		}
	}
	batch.CopyResults(results)
}

// Package denycache remembers denials. If a caller sends the hits again before they can pass, the cache repeats the
// denial without the backend. docs/lab/internals.md#deny-cache says which denials the cache remembers, and for how long.
//
// The answers are the answers of the next Layer, with four exceptions:
//
//   - A refund or a reset through another replica takes effect later.
//   - A repeated denial is not charged, even if the limit charges denied hits. If the algorithm has ResetsAtWindowEnd, the
//     charge would delay nobody. With another algorithm, the charge would prolong the denial, so the cache remembers
//     no denials of limits that charge denied hits.
//   - Remaining is 0, or negative for a debt, because other hits can have spent the remaining hits.
//   - RetryAfter is the time of the denied call. If a later call has more hits, they can need more time.
package denycache

import (
	"context"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/base/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

// Options configure a Limiter.
type Options struct {
	// SizeBytes is the memory of the cache: 64 bytes for a denial, and at least 4096.
	SizeBytes int

	// Observer receives events. It can be nil.
	Observer Observer
}

// Observer receives the events of a Limiter. Its methods must return at once, and not use the Limiter.
type Observer interface {
	// HitDenied is called for each hit that the cache denies. It must not keep the hit.
	HitDenied(*backend.Hit)
}

// Limiter is a backend.Layer that denies hits from its cache and sends all other hits to another Layer.
type Limiter struct {
	options Options
	next    backend.Layer
	table   *table
}

// New returns a Limiter with an empty cache in front of next.
func New(next backend.Layer, o Options) *Limiter {
	return &Limiter{options: o, next: next, table: newTable(o.SizeBytes)}
}

// Forget implements backend.Layer.
func (l *Limiter) Forget(h *backend.Hit) {
	if h == nil {
		l.table.invalidateAll()
	} else {
		l.table.invalidate(l.table.seeds.ID(h.Key, h.Limit.Tag()))
	}
	l.next.Forget(h)
}

// Peek implements backend.Layer.
func (l *Limiter) Peek(ctx context.Context, now time.Time, hits []backend.Hit, peeks []backend.Peek) {
	l.next.Peek(ctx, now, hits, peeks)
	for i := range hits {
		peeks[i].Denial = l.findDenial(now, &hits[i])
	}
}

// findDenial returns the remembered denial with which Take would answer h, or nil.
func (l *Limiter) findDenial(now time.Time, h *backend.Hit) *backend.RememberedDenial {
	id, micros := l.table.seeds.ID(h.Key, h.Limit.Tag()), now.UnixMicro()
	s, set := l.table.lock(id)
	defer s.mu.Unlock()
	e := findEntry(set, id)
	if h.N < 0 || e.id != id || !e.denies(h, micros) {
		return nil
	}
	r := backend.Result{Result: e.result(h, micros), Source: backend.SourceDenyCache}
	return &backend.RememberedDenial{Result: r, FirstDenialTime: time.UnixMicro(e.start), NextAskTime: time.UnixMicro(e.nextAskTime)}
}

// lookup is what the table knows about the counter of a hit.
type lookup struct {
	id         fingerprint.ID
	generation uint32 // the generation of the stripe at the time of the lookup
	isDenied   bool   // the cache denies the hit
	hasEntry   bool   // the table has an entry of the counter
}

// Take implements backend.Limiter. The arguments now of all calls must come from one clock.
func (l *Limiter) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	var space [16]lookup // requests with more hits allocate
	lookups := space[:0]
	nowMicros := now.UnixMicro()
	deniedCount, isGroupDenied := 0, false
	for i := range hits {
		h, id := &hits[i], l.table.seeds.ID(hits[i].Key, hits[i].Limit.Tag())
		if h.N < 0 {
			l.table.invalidate(id)
			lookups = append(lookups, lookup{id: id})
			continue
		}
		var r limit.Result
		hitLookup := l.table.find(id, h, nowMicros, &r)
		lookups = append(lookups, hitLookup)
		if !hitLookup.isDenied {
			continue
		}
		// Separate assignments are 10 ns faster than a single assignment of a Result.
		results[i].Result, results[i].Source, results[i].Err = r, backend.SourceDenyCache, nil
		deniedCount++
		isGroupDenied = isGroupDenied || h.DeniesGroup(&results[i])
		if l.options.Observer != nil {
			l.options.Observer.HitDenied(h)
		}
	}
	switch {
	case deniedCount == 0:
		l.next.Take(ctx, now, hits, results)
	case deniedCount == len(hits):
		return
	case isGroupDenied:
		backend.TakeDeniedGroup(ctx, now, l.next, hits, results, func(i int) bool { return !lookups[i].isDenied })
	default:
		backend.TakePart(ctx, now, l.next, hits, results, func(i int) bool { return !lookups[i].isDenied })
	}
	for i := range hits {
		h, hitLookup, r := &hits[i], &lookups[i], &results[i]
		switch {
		case h.N < 0: // another Take may have added a denial that is older than the refund
			l.table.invalidate(hitLookup.id)
		case hitLookup.isDenied || r.Err != nil || r.IsDegraded() || h.Limit.Algorithm.HasHolds():
		case isGroupDenied && h.IsInGroup(): // TakeDeniedGroup sent only a peek, so r says nothing about h
		case r.Allowed:
			if hitLookup.hasEntry {
				l.table.invalidate(hitLookup.id)
			}
		case followsGroupHit(hits, lookups, i): // the charge of the earlier hit, which caused the denial, may have been refunded
		case r.DenialMayEndEarly:
			l.table.invalidate(hitLookup.id)
		default:
			l.table.add(hitLookup, h, r.Result, nowMicros)
		}
	}
}

// followsGroupHit reports whether a hit of the group comes before hit i on the same counter.
func followsGroupHit(hits []backend.Hit, lookups []lookup, i int) bool {
	for j := range i {
		if hits[j].IsInGroup() && lookups[j].id == lookups[i].id {
			return true
		}
	}
	return false
}

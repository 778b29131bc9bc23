// Package denycache remembers denials. A caller who comes again before the hits can pass
// gets the remembered answer, and the backend gets no call. envoyproxy/ratelimit has
// such a cache for fixed windows, the local cache; this one serves every algorithm.
//
// The answers are those of the wrapped Limiter, with three exceptions:
//
//   - A refund through another replica takes effect here when the denial ends. A refund
//     through this replica and a raised limit take effect at once.
//   - A remembered denial is not charged, even if the limit charges denied hits. If the
//     algorithm resets at once, the charge would delay nobody. Under other algorithms it
//     would prolong the denial, so the cache doesn't remember denials of such limits.
//   - RetryAfter comes from the remembered denial. If a later call asks for more hits
//     than the denied call, RetryAfter is the earliest time at which they might pass.
//
// Denials by the fallback are not remembered.
package denycache

import (
	"context"
	"sync"
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

	// Evicted is called if a denial replaces another one that has not ended.
	Evicted()
}

// Limiter is a backend.Limiter that denies hits from its cache and sends all others to
// another Limiter. It is safe for concurrent use.
type Limiter struct {
	options Options
	next    backend.Limiter
	table   *table
	calls   sync.Pool // of *call
}

var _ backend.Limiter = (*Limiter)(nil)

// New returns a Limiter with an empty cache in front of next.
func New(next backend.Limiter, o Options) *Limiter {
	return &Limiter{options: o, next: next, table: newTable(o.SizeBytes), calls: sync.Pool{New: func() any { return &call{} }}}
}

// Invalidate drops the denial of h's counter. It is called after a reset.
func (l *Limiter) Invalidate(h *backend.Hit) {
	l.table.invalidate(l.table.seeds.ID(h.Key, h.Limit.Tag()))
}

// InvalidateAll drops all denials.
func (l *Limiter) InvalidateAll() { l.table.invalidateAll() }

// call is the memory of one Take.
type call struct {
	lookups []cacheLookup    // by hit
	batch   backend.SubBatch // hits that are sent to next
}

// cacheLookup is the answer of the cache for one hit.
type cacheLookup struct {
	id         fingerprint.ID
	generation uint32 // of the shard at the time of the lookup
	denied     bool
}

// Take implements backend.Limiter. All calls must use the same clock for now.
func (l *Limiter) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	c := l.calls.Get().(*call)
	defer l.calls.Put(c)
	c.lookups = c.lookups[:0]

	nowMicros := now.UnixMicro()
	denied, batchDenied := 0, false
	for i := range hits {
		h := &hits[i]
		lookup := cacheLookup{id: l.table.seeds.ID(h.Key, h.Limit.Tag())}
		if h.N < 0 {
			l.table.invalidate(lookup.id)
		} else {
			var r limit.Result
			r, lookup.denied, lookup.generation = l.table.find(lookup.id, h, nowMicros)
			if lookup.denied {
				// Separate assignments are 10 ns faster than one of a composite.
				results[i].Result, results[i].Source, results[i].Err = r, backend.SourceDenyCache, nil
			}
		}
		if lookup.denied {
			denied++
			batchDenied = batchDenied || l.options.AllOrNone && h.AllOrNone()
			if l.options.Observer != nil {
				l.options.Observer.Denied(h)
			}
		}
		c.lookups = append(c.lookups, lookup)
	}
	switch {
	case denied == 0:
		l.next.Take(ctx, now, hits, results)
	case denied < len(hits):
		l.takeOthers(ctx, now, hits, results, c, batchDenied)
	}
	for i := range hits {
		h, lookup, r := &hits[i], &c.lookups[i], &results[i]
		switch {
		case h.N < 0: // a denial from before the refund may have been added since
			l.table.invalidate(lookup.id)
		case lookup.denied || r.Err != nil || r.Allowed || r.Degraded():
		case batchDenied && h.AllOrNone(): // next has only seen a peek
		default:
			if l.table.add(lookup.id, lookup.generation, h, r.Result, nowMicros) && l.options.Observer != nil {
				l.options.Observer.Evicted()
			}
		}
	}
}

// takeOthers sends the hits that the cache doesn't deny to next. If the batch is denied,
// all-or-none hits become peeks.
func (l *Limiter) takeOthers(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result, c *call, batchDenied bool) {
	defer c.batch.Reset()
	for i, h := range hits {
		if c.lookups[i].denied {
			continue
		}
		if batchDenied && h.AllOrNone() {
			h.N = 0
		}
		c.batch.Add(i, h)
	}
	c.batch.Take(ctx, now, l.next)
	for j, i := range c.batch.Index {
		if h, r := &hits[i], &c.batch.Results[j]; batchDenied && h.AllOrNone() && r.Err == nil {
			r.Result = fromPeek(r.Result, h)
		}
	}
	c.batch.CopyResults(results)
}

// fromPeek turns the answer to a peek into the answer to h if h were not charged. h
// passes if h.N is at most Remaining. Otherwise RetryAfter is ResetAfter, which is an
// upper bound, or Never if h.N exceeds the capacity.
func fromPeek(peek limit.Result, h *backend.Hit) limit.Result {
	r := limit.Result{Allowed: h.N <= peek.Remaining, Remaining: peek.Remaining, ResetAfter: peek.ResetAfter}
	switch {
	case r.Allowed:
	case h.N > h.Limit.Capacity():
		r.RetryAfter = limit.Never
	default:
		r.RetryAfter = peek.ResetAfter
	}
	return r
}

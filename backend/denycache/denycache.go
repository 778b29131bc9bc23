// Package denycache remembers denials, so that a caller who comes again before the
// hits can pass is answered without asking the backend. It is what
// envoyproxy/ratelimit calls its local (over-limit) cache, for every algorithm.
//
// What it answers is what the wrapped Limiter would have answered, but for three
// things (and what a stand-in has denied is not remembered):
//
//   - Hits given back through another replica are seen here up to the denial's
//     RetryAfter late; through this one, at once. A raised limit is seen at once.
//   - A denial from here is not charged where the limit charges denied hits. Under
//     FixedWindow that only keeps the debt from growing. Under the others debt
//     lengthens the denial, so there denials of such limits are not remembered.
//   - RetryAfter is that of the remembered denial: for more hits than that denied,
//     the earliest time at which they might pass.
package denycache

import (
	"context"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

// Options of a Limiter.
type Options struct {
	// SizeBytes bounds the memory of the cache, which is taken at once; at least
	// 4096 is used. An entry takes 64 bytes.
	SizeBytes int

	// AllOrNone must be that of the wrapped Limiter: if one is denied from here,
	// no other hit that binds (backend.Hit.AllOrNone) is charged.
	AllOrNone bool

	// OnDenied, if given, is told of each hit denied from here. It must not keep
	// the hit.
	OnDenied func(h *backend.Hit)
}

// Limiter is a backend.Limiter that asks another only for what it doesn't know to
// be denied. It is safe for concurrent use.
type Limiter struct {
	options Options
	next    backend.Limiter
	table   *table
	asks    sync.Pool // of *ask
}

var _ backend.Limiter = (*Limiter)(nil)

// New wraps next.
func New(next backend.Limiter, o Options) *Limiter {
	return &Limiter{options: o, next: next, table: newTable(o.SizeBytes), asks: sync.Pool{New: func() any { return &ask{} }}}
}

// ask is the memory of one Take.
type ask struct {
	seen   []seen           // of each hit
	others backend.SubBatch // than those denied from here
}

// seen is what was found for a hit before next was asked.
type seen struct {
	id      fingerprint.ID
	returns uint32 // of its shard
	denied  bool
}

// Take implements backend.Limiter. now must be from one clock.
func (l *Limiter) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	a := l.asks.Get().(*ask)
	defer l.asks.Put(a)
	a.seen = a.seen[:0]

	at := now.UnixMicro()
	denied, blocked := 0, false
	for i := range hits {
		h := &hits[i]
		s := seen{id: l.table.seeds.Of(h.Key, h.Limit.Tag())}
		if h.N < 0 {
			l.table.forget(s.id)
		} else {
			var r limit.Result
			if r, s.denied, s.returns = l.table.find(s.id, h, at); s.denied {
				results[i] = backend.Result{Source: backend.SourceDenyCache, Result: r}
			}
		}
		if s.denied {
			denied++
			blocked = blocked || l.options.AllOrNone && h.AllOrNone()
			if l.options.OnDenied != nil {
				l.options.OnDenied(h)
			}
		}
		a.seen = append(a.seen, s)
	}
	switch {
	case denied == 0:
		l.next.Take(ctx, now, hits, results)
	case denied < len(hits):
		l.takeOthers(ctx, now, hits, results, a, blocked)
	}
	for i := range hits {
		h, s, r := &hits[i], &a.seen[i], &results[i]
		switch {
		case h.N < 0: // again: denials that next gave before may have come meanwhile
			l.table.forget(s.id)
		case s.denied || r.Err != nil || r.Allowed || r.Degraded():
		case blocked && h.AllOrNone(): // known by a peek only
		default:
			l.table.remember(s.id, s.returns, h, r.Result, at)
		}
	}
}

// takeOthers asks next for the hits that aren't denied yet. If blocked, those that
// bind are only looked at.
func (l *Limiter) takeOthers(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result, a *ask, blocked bool) {
	defer a.others.Reset()
	for i, h := range hits {
		if a.seen[i].denied {
			continue
		}
		if blocked && h.AllOrNone() {
			h.N = 0
		}
		a.others.Add(i, h)
	}
	a.others.Take(ctx, now, l.next)
	for j, i := range a.others.Index {
		if h, r := &hits[i], &a.others.Results[j]; blocked && h.AllOrNone() && r.Err == nil {
			r.Result = wouldBe(r.Result, h)
		}
	}
	a.others.CopyResults(results)
}

// wouldBe turns the answer to a peek into that to the hit, were it not charged. n
// hits pass just where n is at most what remains, under every algorithm; a peek
// itself is denied by other rules. When denied hits can pass is known only to be
// at most when the budget is whole again.
func wouldBe(peek limit.Result, h *backend.Hit) limit.Result {
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

// Package guard protects the backend from a hot key. If this replica alone has charged
// more than a limit's hits in a window, the guard denies the rest of the window without
// a call of the backend.
//
// The guard denies only hits that the backend would deny. So it counts only hits that
// were charged, and covers only limits with aligned windows that charge denied hits, such
// as fixed_window by default. Their counts don't fall before the window ends, and charges
// beyond the limit change nothing.
// Package denycache remembers the denials of all limits, but only for as long as they
// last. There are three things that the guard can't know:
//
//   - Refunds through another replica. A ratio above 1 leaves room for them.
//   - The clock of the backend. If the clock of this process is off by d, the hits of a
//     time d are counted in the wrong window.
//   - A loss of the backend's counters. The denials are still right then.
//
// A raised limit takes effect at once.
package guard

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// Options configure a Limiter. All are required.
type Options struct {
	// Next decides the hits that the guard doesn't deny. It must not charge
	// all-or-none.
	Next backend.Limiter

	// Counters counts the charged hits, in this process.
	Counters backend.Limiter

	// Ratio is the part of a limit that this replica must have charged before the guard
	// denies. It is at least 1.
	Ratio float64
}

// Limiter is a backend.Limiter. It is safe for concurrent use.
type Limiter struct {
	o         Options
	namespace atomic.Pointer[string] // prefix of the keys in Counters
	calls     sync.Pool              // of *call
}

var _ backend.Limiter = (*Limiter)(nil)

// New returns a Limiter.
func New(o Options) *Limiter {
	l := &Limiter{o: o, calls: sync.Pool{New: func() any { return new(call) }}}
	l.InvalidateAll()
	return l
}

// Invalidate drops the count of h's counter. It is called after a reset.
func (l *Limiter) Invalidate(h *backend.Hit) {
	if !covers(h.Limit) {
		return
	}
	refund := backend.Hit{Key: append([]byte(*l.namespace.Load()), h.Key...), Limit: h.Limit, N: -limit.MaxHits}
	l.o.Counters.Take(context.Background(), time.Now(), []backend.Hit{refund}, make([]backend.Result, 1))
}

// InvalidateAll drops all counts: it gives the counters a new namespace.
func (l *Limiter) InvalidateAll() {
	namespace := fmt.Sprintf("guard:%d:", namespaces.Add(1))
	l.namespace.Store(&namespace)
}

var namespaces atomic.Uint64 // number of the last namespace

// call is the memory of one Take.
type call struct {
	covered   backend.SubBatch // the covered hits, as hits on Counters
	forwarded backend.SubBatch // the hits for Next
}

// Take implements backend.Limiter.
func (l *Limiter) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	anyCovered := false
	for i := range hits {
		anyCovered = anyCovered || covers(hits[i].Limit)
	}
	if !anyCovered {
		l.o.Next.Take(ctx, now, hits, results)
		return
	}
	c := l.calls.Get().(*call)
	defer func() {
		c.covered.Reset()
		c.forwarded.Reset()
		l.calls.Put(c)
	}()
	l.peek(ctx, now, c, hits)
	l.takeOthers(ctx, now, c, hits, results)
	for j, i := range c.covered.Index {
		h, r := &hits[i], &results[i]
		if r.Err == nil && !r.Degraded() && !l.denies(c, j, h) {
			c.covered.Hits[j].N = h.N
		}
	}
	c.covered.Take(ctx, now, l.o.Counters)
}

// covers reports whether the guard counts hits on lim.
func covers(lim *limit.Limit) bool {
	return lim.Algorithm.Aligned() && lim.ChargeDenied && lim.Max() > 0
}

// peek looks up the counts of the covered hits.
func (l *Limiter) peek(ctx context.Context, now time.Time, c *call, hits []backend.Hit) {
	namespace := *l.namespace.Load()
	for i := range hits {
		if h := &hits[i]; covers(h.Limit) {
			c.covered.AddIn(namespace, i, backend.Hit{Key: h.Key, Limit: h.Limit})
		}
	}
	c.covered.Take(ctx, now, l.o.Counters)
}

// denies reports whether the guard denies h, which is covered hit j of c.
func (l *Limiter) denies(c *call, j int, h *backend.Hit) bool {
	count := &c.covered.Results[j]
	charged := h.Limit.Max() - count.Remaining
	return h.N > 0 && count.Err == nil && float64(charged) >= math.Ceil(float64(h.Limit.Max())*l.o.Ratio)
}

// takeOthers denies the hits beyond the ratio and sends the others to Next.
func (l *Limiter) takeOthers(ctx context.Context, now time.Time, c *call, hits []backend.Hit, results []backend.Result) {
	next := 0 // next covered hit
	for i := range hits {
		h := &hits[i]
		if next < len(c.covered.Index) && c.covered.Index[next] == i {
			j := next
			next++
			if l.denies(c, j, h) {
				results[i] = backend.Result{Source: backend.SourceGuard, Result: denial(h, c.covered.Results[j].Result)}
				continue
			}
		}
		c.forwarded.Add(i, *h)
	}
	if len(c.forwarded.Hits) == len(hits) {
		l.o.Next.Take(ctx, now, hits, results)
		return
	}
	c.forwarded.Take(ctx, now, l.o.Next)
	c.forwarded.CopyResults(results)
}

// denial returns the denial of h until the window ends. count is the answer of Counters.
func denial(h *backend.Hit, count limit.Result) limit.Result {
	r := limit.Result{Remaining: count.Remaining, ResetAfter: count.ResetAfter, RetryAfter: count.ResetAfter}
	if h.N > h.Limit.Max() {
		r.RetryAfter = limit.Never
	}
	return r
}

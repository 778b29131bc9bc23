// Package guard protects the backend from a hot key. If this replica alone has charged more
// hits in a window than the limit admits, the guard denies all hits until the window ends,
// without a call of the backend.
//
// The guard denies only hits that the backend would deny. So it counts only hits that
// were charged, and covers only limits with aligned windows that charge denied hits, such
// as fixed_window by default. The counts of these limits don't fall before the window
// ends, and charges beyond the limit change nothing.
//
// The deny cache (package denycache) remembers the denials of all limits, but only while they
// last. There are three things that the guard can't know:
//
//   - Refunds through another replica. A ratio above 1 leaves room for them.
//   - The clock of the backend. If the clock of this process differs by d, hits within d of
//     the end of a window are counted in the wrong window.
//   - A loss of the backend's counters. The guard then goes on denying. This is right,
//     because the hits were charged in this window.
//
// A raised limit takes effect at once.
package guard

import (
	"context"
	"fmt"
	"math"
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

	// Ratio × the limit is the number of hits that this replica must have charged before
	// the guard denies. Ratio is at least 1.
	Ratio float64
}

// Limiter is a backend.Limiter. It is safe for concurrent use.
type Limiter struct {
	o         Options
	namespace atomic.Pointer[string] // prefix of the keys in Counters
}

var _ backend.Limiter = (*Limiter)(nil)

// New returns a Limiter.
func New(o Options) *Limiter {
	l := &Limiter{o: o}
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
	namespace := fmt.Sprintf("guard:%d:", lastNamespace.Add(1))
	l.namespace.Store(&namespace)
}

var lastNamespace atomic.Uint64

// Take implements backend.Limiter.
func (l *Limiter) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	counts := backend.NewSubBatch() // the covered hits, first as peeks and then as charges
	defer counts.Release()
	namespace := *l.namespace.Load()
	for i := range hits {
		if h := &hits[i]; covers(h.Limit) {
			counts.AddWithPrefix(namespace, i, backend.Hit{Key: h.Key, Limit: h.Limit})
		}
	}
	counts.Take(ctx, now, l.o.Counters)
	clear(results) // their Source marks the hits that the guard denies
	for j, i := range counts.Index {
		if h, count := &hits[i], &counts.Results[j]; l.denies(h, count) {
			results[i] = backend.Result{Source: backend.SourceGuard, Result: denial(h, count.Result)}
		}
	}
	backend.TakePart(ctx, now, l.o.Next, hits, results, func(i int) bool { return results[i].Source != backend.SourceGuard })
	for j, i := range counts.Index {
		if r := &results[i]; r.Err == nil && r.Source.IsBackend() {
			counts.Hits[j].N = hits[i].N
		}
	}
	counts.Take(ctx, now, l.o.Counters)
}

// PeekDenial returns the denial that the guard would answer to h, and the start of the window
// that it denies. ok is false if the guard would not answer. PeekDenial changes nothing.
func (l *Limiter) PeekDenial(now time.Time, h *backend.Hit) (r backend.Result, since time.Time, ok bool) {
	if !covers(h.Limit) {
		return r, since, false
	}
	peek := backend.Hit{Key: append([]byte(*l.namespace.Load()), h.Key...), Limit: h.Limit}
	counts := make([]backend.Result, 1)
	l.o.Counters.Take(context.Background(), now, []backend.Hit{peek}, counts)
	if !l.denies(h, &counts[0]) {
		return r, since, false
	}
	since = time.UnixMicro(h.Limit.WindowStart(now.UnixMicro() + counts[0].ResetAfter))
	return backend.Result{Source: backend.SourceGuard, Result: denial(h, counts[0].Result)}, since, true
}

// covers reports whether the guard counts hits on lim.
func covers(lim *limit.Limit) bool {
	return lim.Algorithm.Aligned() && lim.ChargeDenied && lim.Max() > 0
}

// denies reports whether the guard denies h. count is the answer of Counters.
func (l *Limiter) denies(h *backend.Hit, count *backend.Result) bool {
	charged := h.Limit.Max() - count.Remaining
	return h.N > 0 && count.Err == nil && float64(charged) >= math.Ceil(float64(h.Limit.Max())*l.o.Ratio)
}

// denial returns the denial of h until the window ends. count is the answer of Counters.
func denial(h *backend.Hit, count limit.Result) limit.Result {
	r := limit.Result{Remaining: count.Remaining, ResetAfter: count.ResetAfter, RetryAfter: count.ResetAfter}
	if h.N > h.Limit.Max() {
		r.RetryAfter = limit.Never
	}
	return r
}

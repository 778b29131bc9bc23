// Package guard keeps one hot key from flooding the backend: a replica that alone
// has had more than a limit's hits charged in a window denies the rest of it
// without asking.
//
// It denies only what the backend would deny. So it counts what it knows to be
// charged, and covers only fixed_window limits that charge denied hits, as they do
// by default: their counts don't fall before the window ends, and what is charged
// beyond the limit changes nothing. Of the others, denials last only as long as
// package denycache remembers them. What it can't know:
//
//   - Hits given back through another replica. A ratio over 1 leaves room for them.
//   - The backend's clock. Where this process' clock is off by d, the hits of d
//     are counted for the wrong window.
//   - That the backend has lost its counters. The denial is then still right.
//
// A raised limit takes effect at once.
package guard

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// Options of a Limiter; all are required.
type Options struct {
	// Next is asked for what isn't denied here. It must not charge all or none.
	Next backend.Limiter

	// Counters holds what was charged, in this process.
	Counters backend.Limiter

	// Ratio is how much of a limit this replica must have charged; from 1.
	Ratio float64
}

// Limiter is a backend.Limiter. It is safe for concurrent use.
type Limiter struct {
	o          Options
	thresholds *backend.Derived
	namespace  atomic.Pointer[string] // starts the keys of its own counters
	calls      sync.Pool              // of *call
}

var _ backend.Limiter = (*Limiter)(nil)

// New returns a Limiter.
func New(o Options) *Limiter {
	l := &Limiter{o: o, calls: sync.Pool{New: func() any { return new(call) }}}
	l.thresholds = backend.NewDerived(l.threshold)
	l.ForgetAll()
	return l
}

// call is the memory of one Take.
type call struct {
	own, asked backend.SubBatch
}

// Take implements backend.Limiter.
func (l *Limiter) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	guarded := false
	for i := range hits {
		guarded = guarded || l.guards(hits[i].Limit)
	}
	if !guarded {
		l.o.Next.Take(ctx, now, hits, results)
		return
	}
	c := l.calls.Get().(*call)
	defer func() {
		c.own.Reset()
		c.asked.Reset()
		l.calls.Put(c)
	}()
	l.peek(ctx, now, c, hits)
	l.takeOthers(ctx, now, c, hits, results)
	for j, i := range c.own.Index {
		c.own.Hits[j].N = 0
		if r := &results[i]; r.Err == nil && !r.Degraded() && !c.denies(j, &hits[i]) {
			c.own.Hits[j].N = hits[i].N
		}
	}
	c.own.Take(ctx, now, l.o.Counters)
}

// guards tells whether a limit is covered.
func (l *Limiter) guards(lim *limit.Limit) bool {
	return lim.Algorithm.Aligned() && lim.ChargeDenied && lim.Max() > 0 && l.most(lim) <= math.MaxUint32
}

// most is how many hits must be charged in a window until hits are denied here.
func (l *Limiter) most(lim *limit.Limit) float64 { return math.Ceil(float64(lim.Max()) * l.o.Ratio) }

// peek looks up what was charged for the hits that are guarded.
func (l *Limiter) peek(ctx context.Context, now time.Time, c *call, hits []backend.Hit) {
	namespace := *l.namespace.Load()
	for i := range hits {
		if h := &hits[i]; l.guards(h.Limit) {
			c.own.AddIn(namespace, i, backend.Hit{Key: h.Key, Limit: l.thresholds.Of(h.Limit)})
		}
	}
	c.own.Take(ctx, now, l.o.Counters)
}

// denies tells whether the guarded hit h, the jth of c.own, is denied here.
func (c *call) denies(j int, h *backend.Hit) bool {
	return h.N > 0 && c.own.Results[j].Err == nil && c.own.Results[j].Remaining <= 0
}

// takeOthers denies what is over its threshold and asks Next for the rest.
func (l *Limiter) takeOthers(ctx context.Context, now time.Time, c *call, hits []backend.Hit, results []backend.Result) {
	next := 0 // of c.own
	for i := range hits {
		h := &hits[i]
		if next < len(c.own.Index) && c.own.Index[next] == i {
			j := next
			next++
			if c.denies(j, h) {
				results[i] = backend.Result{Source: backend.SourceGuard, Result: denial(h, c.own.Hits[j].Limit, c.own.Results[j].Result)}
				continue
			}
		}
		c.asked.Add(i, *h)
	}
	if len(c.asked.Hits) == len(hits) {
		l.o.Next.Take(ctx, now, hits, results)
		return
	}
	c.asked.Take(ctx, now, l.o.Next)
	c.asked.CopyResults(results)
}

// denial answers h from what its own counter, held to threshold, answered. Nothing
// passes before the window ends.
func denial(h *backend.Hit, threshold *limit.Limit, own limit.Result) limit.Result {
	charged := threshold.Max() - own.Remaining
	r := limit.Result{Remaining: h.Limit.Max() - charged, ResetAfter: own.ResetAfter, RetryAfter: own.ResetAfter}
	if h.N > h.Limit.Max() {
		r.RetryAfter = limit.Never
	}
	return r
}

// threshold is lim with most for its number.
func (l *Limiter) threshold(lim *limit.Limit) *limit.Limit {
	made, err := limit.New(limit.Spec{Requests: uint32(l.most(lim)), Unit: lim.Unit, Multiplier: lim.Multiplier, ChargeDenied: true})
	if err != nil {
		panic(err) // its window is that of a good one
	}
	return made
}

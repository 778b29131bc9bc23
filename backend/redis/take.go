package redis

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// Take implements backend.Limiter. Once ctx ends or the budget is over it returns
// at once; whether hits on their way are charged is then unknown. now counts only
// with CallersClock.
func (l *Limiter) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	if len(hits) == 0 {
		return
	}
	if ctx.Err() != nil {
		failAll(results, fmt.Errorf("redis: not asked: %w", context.Cause(ctx)))
		return
	}
	sent := time.Now()
	r := l.request(now, sent.Add(l.budget(ctx, sent)))
	for i := range hits {
		r.add(l, i, &hits[i], hits[i].N)
	}
	r.send()
	if err := r.wait(ctx, l); err != nil {
		failAll(results, err)
		return
	}
	denied := false
	for _, c := range r.calls {
		for i := range c.hits {
			a := &c.answers[i]
			results[c.hits[i].index] = a.Result
			denied = denied || c.hits[i].binds && a.Err == nil && !a.Allowed
		}
	}
	if denied {
		l.giveBack(ctx, now, sent, r, hits, results)
	}
	l.recycle(r)
}

// budget is how long a Take may last: the timeout, but of a caller who waits less
// long only a part, so that it can still be told, or another Limiter be asked. (By
// default Envoy waits 20 ms.)
func (l *Limiter) budget(ctx context.Context, now time.Time) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return min(l.options.Timeout, end.Sub(now)*3/4)
	}
	return l.options.Timeout
}

// giveBack takes off what was charged for hits although others of their Take are
// denied. That happens where the hits were not charged in one step, as they have
// no partition in common; so others can see the charges for the time of a trip. A
// charge whose window may be over is left: it is gone by itself.
func (l *Limiter) giveBack(ctx context.Context, now, sent time.Time, charged *request, hits []backend.Hit, results []backend.Result) {
	var r *request
	for _, c := range charged.calls {
		for i, h := range c.hits {
			if !c.answers[i].charged || time.Since(sent).Microseconds() >= c.answers[i].ResetAfter {
				continue
			}
			if r == nil {
				r = l.request(now, charged.until)
			}
			r.add(l, h.index, &hits[h.index], -h.n)
		}
	}
	if r == nil {
		return
	}
	r.send()
	if r.wait(ctx, l) != nil {
		return // they stay charged, and are answered so
	}
	for _, c := range r.calls {
		for i, h := range c.hits {
			if a := c.answers[i].Result; a.Err == nil {
				results[h.index] = a
			}
		}
	}
	l.recycle(r)
}

func failAll(results []backend.Result, err error) {
	for i := range results {
		results[i] = backend.Result{Err: err}
	}
}

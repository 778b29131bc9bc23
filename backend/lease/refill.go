package lease

import (
	"context"
	"errors"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// maxTrips bounds the trips of a refill: one for the allowance, one for permits, and one more
// if less is left than was asked for.
const maxTrips = 3

// tripTimeout bounds a background trip. Source normally has a shorter bound of its own.
const tripTimeout = time.Second

// refillIfLow starts a refill of e in the background if permits run low.
func (l *Limiter) refillIfLow(s *shard, e *lease, now int64) {
	if e.isBusy || e.permits > e.lowMark {
		return
	}
	t, ok := e.plan(now)
	if !ok || l.o.IsFailing(&backend.Hit{Key: e.key, Limit: e.limit}) {
		return
	}
	e.isBusy = true
	l.spawn(func() { l.refill(s, e, t, now) })
}

// refill makes trips until e has enough permits. The caller has set e.isBusy. All trips use
// the time before the first trip, so permits never expire too late.
func (l *Limiter) refill(s *shard, e *lease, t trip, now int64) {
	for i := 1; ; i++ {
		permits, budget := l.exchange(t, now)
		s.mu.Lock()
		e.isBusy = false
		l.apply(s, e, t, now, permits, budget)
		ok := false
		if i < maxTrips && !s.closed {
			t, ok = e.plan(now)
		}
		e.isBusy = ok
		s.mu.Unlock()
		if !ok {
			return
		}
	}
}

// exchange sends the hits of t to Source.
func (l *Limiter) exchange(t trip, now int64) (permits, budget backend.Result) {
	b := backend.NewSubBatch()
	defer b.Release()
	if t.permits > 0 {
		b.Add(0, backend.Hit{Key: t.key, Limit: t.limit, N: t.permits, Window: t.window, Shadow: true})
	}
	if t.asksBudget() {
		b.Add(1, backend.Hit{Key: t.budgetKey, Limit: t.budget, N: t.change, Window: t.window, Shadow: true})
	}
	l.send(b, now)
	results := make([]backend.Result, 2)
	b.CopyResults(results)
	return results[0], results[1]
}

// send sends b to Source.
func (l *Limiter) send(b *backend.SubBatch, now int64) {
	ctx, cancel := context.WithTimeout(l.ctx, tripTimeout)
	defer cancel()
	b.Take(ctx, l.start.Add(time.Duration(now)*time.Microsecond), l.o.Source)
}

// apply records the answers to t, which was sent after now. The caller holds the mutex.
func (l *Limiter) apply(s *shard, e *lease, t trip, now int64, permits, budget backend.Result) {
	if t.permits > 0 && permits.Err == nil && permits.Allowed {
		s.stats.Taken += t.permits
	}
	if e.epoch != t.epoch { // the window, the counter or the limit is another one now
		if t.permits > 0 && permits.Err == nil && permits.Allowed {
			s.stats.Lapsed += t.permits
		}
		return
	}
	if t.asksBudget() && budget.Err == nil && e.windowEnd == 0 {
		e.window, e.windowEnd = budget.Window, now+budget.ResetAfter
	}
	switch {
	case !t.asksBudget():
	case budget.Err != nil:
		e.allowance += min(t.change, 0)
		e.retryAt = now + retryPause
	case budget.Allowed:
		e.allowance += t.change
		e.freeBudget = budget.Remaining
	default:
		e.freeBudget = max(budget.Remaining, 0)
		if e.allowance < 2 && e.freeBudget < 2 {
			e.retryAt = now + budgetPause
		}
	}
	switch {
	case t.permits == 0:
	case permits.Err != nil:
		if !errors.Is(permits.Err, backend.ErrNotSent) { // the permits may be charged and lost
			e.allowance = max(e.allowance-t.permits, 0)
		}
		e.retryAt = now + retryPause
	case permits.Allowed:
		e.permits += t.permits
		e.observe(now, &permits.Result)
	default:
		e.observe(now, &permits.Result)
	}
	e.lowMark = e.permits / 4
}

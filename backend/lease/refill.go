package lease

import (
	"context"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

const (
	maxTrips    = 3           // the most trips of a refill: one for the allowance, one for permits, and one for more permits
	tripTimeout = time.Second // bounds a trip if Source has no shorter timeout
)

// refillIfLow starts a refill of e in the background if e has at most refillThreshold permits.
func (l *Limiter) refillIfLow(s *stripe, e *lease, now int64) {
	if e.isRefilling || e.permits > e.refillThreshold {
		return
	}
	t, ok := e.planTrip(now)
	if !ok || l.options.IsFailing(&backend.Hit{Key: e.key, Limit: e.limit}) {
		return
	}
	e.isRefilling = true
	l.spawn(func() { l.refill(s, e, t, now) })
}

// refill makes trip t, and further trips until e needs no trip. now is the time before the first trip, and all trips use
// this time. So windowEnd is never too late, and no hit uses a permit after its window.
func (l *Limiter) refill(s *stripe, e *lease, t trip, now int64) {
	for tripNumber, ok := 1, true; ok; tripNumber++ {
		permitAnswer, budgetAnswer := l.sendTrip(t, now)
		t, ok = l.finishTrip(s, e, t, now, permitAnswer, budgetAnswer, tripNumber < maxTrips)
	}
}

// finishTrip updates e with the answers to trip t. It returns the next trip, if e needs one and mayContinue is true.
func (l *Limiter) finishTrip(s *stripe, e *lease, t trip, now int64, permitAnswer, budgetAnswer backend.Result, mayContinue bool) (next trip, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.isRefilling = false // otherwise planTrip plans no trip
	l.applyAnswers(s, e, t, now, permitAnswer, budgetAnswer)
	if mayContinue && !s.isClosed {
		next, e.isRefilling = e.planTrip(now)
	}
	return next, e.isRefilling
}

// sendTrip sends the hits of t. permitAnswer is about the hit on the shared counter, and budgetAnswer about the hit on the
// budget.
func (l *Limiter) sendTrip(t trip, now int64) (permitAnswer, budgetAnswer backend.Result) {
	b := backend.NewSubBatch()
	defer b.Release()
	if t.permits > 0 {
		b.Add(0, t.permitHit(t.permits))
	}
	b.Add(1, t.budgetHit(t.allowanceChange))
	l.send(b, now)
	results := make([]backend.Result, 2)
	b.CopyResults(results)
	return results[0], results[1]
}

func (l *Limiter) send(b *backend.SubBatch, now int64) {
	ctx, cancel := context.WithTimeout(l.ctx, tripTimeout)
	defer cancel()
	b.Take(ctx, l.createdAt.Add(time.Duration(now)*time.Microsecond), l.options.Source)
}

// applyAnswers updates e with the answers to trip t, which was sent after now. The caller holds the mutex.
func (l *Limiter) applyAnswers(s *stripe, e *lease, t trip, now int64, permitAnswer, budgetAnswer backend.Result) {
	gotPermits := t.permits > 0 && permitAnswer.Err == nil && permitAnswer.Allowed
	if gotPermits {
		s.stats.TakenPermits += t.permits
	}
	if e.epoch != t.epoch { // since the start of the trip, the window has ended, the counter was reset, or the limit has changed
		if gotPermits {
			s.stats.LapsedPermits += t.permits
		}
		return
	}
	if budgetAnswer.Err == nil && e.windowEnd == 0 {
		e.windowStart, e.windowEnd = budgetAnswer.WindowStart, now+budgetAnswer.ResetAfter
	}
	switch {
	case budgetAnswer.Err != nil:
		e.allowance += min(t.allowanceChange, 0)
		e.retryAt = now + retryPause
	case budgetAnswer.Allowed:
		e.allowance += t.allowanceChange
		e.freeBudget = budgetAnswer.Remaining
	default:
		e.freeBudget = max(budgetAnswer.Remaining, 0)
		if e.allowance < 2 && e.freeBudget < 2 {
			e.retryAt = now + budgetPause
		}
	}
	switch {
	case t.permits == 0:
	case permitAnswer.Err != nil:
		if !backend.IsNotSent(permitAnswer.Err) { // the permits may be charged, but this replica can't use them
			e.allowance = max(e.allowance-t.permits, 0)
		}
		e.retryAt = now + retryPause
	case permitAnswer.Allowed:
		e.permits += t.permits
		e.recordAnswer(now, &permitAnswer.Result)
	default:
		e.recordAnswer(now, &permitAnswer.Result)
	}
	e.refillThreshold = e.permits / 4
}

package backend

import (
	"context"
	"errors"
	"time"
)

// BoundedLimiter bounds the time of each Take of another Limiter, which can't end its Takes early. A Take of a
// BoundedLimiter ends when its context ends or its budget is used up. After the budget, each hit gets a LateError. Then the
// BoundedLimiter waits in the background for the answers of the other Limiter, and passes them to the LateErrors.
type BoundedLimiter struct {
	next          Limiter
	budget        time.Duration
	takesInFlight chan struct{} // has an element for each Take of next in flight
}

// NewBoundedLimiter returns a BoundedLimiter over next. At most maxInFlight Takes of next run at once. Other Takes wait.
func NewBoundedLimiter(next Limiter, budget time.Duration, maxInFlight int) *BoundedLimiter {
	return &BoundedLimiter{next: next, budget: budget, takesInFlight: make(chan struct{}, maxInFlight)}
}

var (
	errLate    = &Error{Reason: ReasonLate}
	errNotSent = &Error{Reason: ReasonLate, NotSent: true, Cause: errors.New("earlier calls have no answer yet")}
)

// Take implements Limiter. If the caller has a deadline, the budget is at most three quarters of the time left,
// so that another Limiter can still decide.
func (b *BoundedLimiter) Take(ctx context.Context, now time.Time, hits []Hit, results []Result) {
	budget := b.budget
	if deadline, ok := ctx.Deadline(); ok {
		budget = min(budget, time.Until(deadline)*3/4)
	}
	takeCtx, stop := context.WithTimeout(ctx, budget)
	defer stop()
	fail := func(err error) {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		for i := range results {
			results[i] = Result{Err: err}
		}
	}
	select {
	case b.takesInFlight <- struct{}{}:
	case <-takeCtx.Done():
		fail(errNotSent)
		return
	}
	s := NewSubBatch()
	for i, h := range hits {
		s.AddWithPrefix("", i, h) // copies the key
	}
	done, errorsToDeliver := make(chan struct{}), make(chan []*LateError, 1)
	go func() {
		s.Take(takeCtx, now, b.next)
		<-b.takesInFlight
		close(done)
		s.deliverLateAnswers(<-errorsToDeliver)
		s.Release()
	}()
	var lateErrors []*LateError
	select {
	case <-done:
		s.CopyResults(results)
	case <-takeCtx.Done():
		fail(errLate)
		for i := 0; i < len(results) && ctx.Err() == nil; i++ {
			lateErrors = append(lateErrors, NewLateError(errLate))
			results[i].Err = lateErrors[i]
		}
	}
	errorsToDeliver <- lateErrors
}

// deliverLateAnswers passes the Results to lateErrors. lateErrors is empty if the Results came in time.
func (s *SubBatch) deliverLateAnswers(lateErrors []*LateError) {
	isGroupDenied := IsGroupDenied(s.Hits, s.Results)
	for i, e := range lateErrors {
		r := s.Results[i]
		r.Allowed = r.Allowed && (!isGroupDenied || !s.Hits[i].IsInGroup())
		e.SetAnswer(r)
	}
}

// Close waits for the Takes in flight. Later Takes fail.
func (b *BoundedLimiter) Close() {
	for range cap(b.takesInFlight) {
		b.takesInFlight <- struct{}{}
	}
}

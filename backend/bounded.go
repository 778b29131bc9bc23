package backend

import (
	"context"
	"errors"
	"time"
)

// Bounded bounds the time of each Take of a Limiter whose client can't end a call early. A Take ends with
// its context, or when its budget is used up. Then the Limiter still answers, with a done context, and
// each hit has a LateError.
type Bounded struct {
	next   Limiter
	budget time.Duration
	slots  chan struct{} // has an element for each Take in flight
}

var _ Limiter = (*Bounded)(nil)

// NewBounded returns a Bounded over next. At most maxInFlight Takes run at the same time. Others wait.
func NewBounded(next Limiter, budget time.Duration, maxInFlight int) *Bounded {
	return &Bounded{next: next, budget: budget, slots: make(chan struct{}, maxInFlight)}
}

var (
	errLate    = &Error{Reason: ReasonLate}
	errWaiting = &Error{Reason: ReasonLate, NotSent: true, Cause: errors.New("calls before this call wait for an answer")}
)

// Take implements Limiter. If the caller has a deadline, the budget is at most three quarters of the time left,
// so that another Limiter can still decide.
func (b *Bounded) Take(ctx context.Context, now time.Time, hits []Hit, results []Result) {
	budget := b.budget
	if end, ok := ctx.Deadline(); ok {
		budget = min(budget, time.Until(end)*3/4)
	}
	bounded, stop := context.WithTimeout(ctx, budget)
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
	case b.slots <- struct{}{}:
	case <-bounded.Done():
		fail(errWaiting)
		return
	}
	s := NewSubBatch()
	for i, h := range hits {
		s.AddWithPrefix("", i, h) // with a key of its own
	}
	answered, lateErrors := make(chan struct{}), make(chan []*LateError, 1)
	go func() {
		s.Take(bounded, now, b.next)
		<-b.slots
		close(answered)
		s.arriveLate(<-lateErrors)
		s.Release()
	}()
	var late []*LateError
	select {
	case <-answered:
		s.CopyResults(results)
	case <-bounded.Done():
		fail(errLate)
		for i := 0; i < len(results) && ctx.Err() == nil; i++ {
			late = append(late, NewLateError(errLate))
			results[i].Err = late[i]
		}
	}
	lateErrors <- late
}

// arriveLate passes Results to the LateErrors, if there are any.
func (s *SubBatch) arriveLate(late []*LateError) {
	isDenied := IsGroupDenied(s.Hits, s.Results)
	for i, e := range late {
		r := s.Results[i]
		r.Allowed = r.Allowed && (!isDenied || !s.Hits[i].InGroup())
		e.Arrive(r)
	}
}

// Close waits for the Takes in flight. Later Takes fail.
func (b *Bounded) Close() {
	for range cap(b.slots) {
		b.slots <- struct{}{}
	}
}

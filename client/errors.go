package client

import (
	"context"
	"fmt"
	"time"
)

// WaitError is the error of an Acquire whose permits can't come before the deadline of its
// context. Acquire returns it at once, and charges nothing. errors.Is reports that it is
// context.DeadlineExceeded.
type WaitError struct {
	// Wait is the shortest time until the permits can come. Other callers can make it longer.
	Wait time.Duration
}

// Error implements error.
func (e *WaitError) Error() string {
	return fmt.Sprintf("permits come in %s at the earliest, after the deadline of the context", e.Wait.Round(time.Millisecond))
}

// Unwrap returns context.DeadlineExceeded.
func (e *WaitError) Unwrap() error { return context.DeadlineExceeded }

// WeightError is the error of a request for more permits than its limit ever has. Such a
// request can never pass, so no method waits for it.
type WeightError struct {
	// N is the number of permits that the request asks for.
	N int

	// Name and Limit describe the limit, as in Decision.
	Name  string
	Limit uint32
}

// Error implements error.
func (e *WeightError) Error() string {
	name := ""
	if e.Name != "" {
		name = " " + e.Name
	}
	return fmt.Sprintf("%d permits can never pass the limit%s of %d in a window; ask for fewer permits at a time", e.N, name, e.Limit)
}

func newWeightError(n int, a *answer) error {
	return &WeightError{N: n, Name: a.Name, Limit: a.Limit}
}

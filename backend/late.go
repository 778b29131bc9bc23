package backend

import "sync"

// LateError is the error of a hit that was sent and not answered in time. The answer may still
// come, and then the caller of Take can learn whether the hit was charged. It is safe for
// concurrent use.
type LateError struct {
	cause error

	mu        sync.Mutex // guards the fields below
	answer    *Result
	onArrival func(Result)
}

// NewLateError returns a LateError without an answer. cause is its text, and what it wraps.
func NewLateError(cause error) *LateError { return &LateError{cause: cause} }

// Error implements error.
func (e *LateError) Error() string { return e.cause.Error() }

// Unwrap returns the cause.
func (e *LateError) Unwrap() error { return e.cause }

// Arrive sets the answer to the hit. The backend calls it at most once. If r.Allowed is set, the
// hit was charged. If IsNotSent(r.Err), the hit was not charged. With another error, nobody
// knows.
func (e *LateError) Arrive(r Result) {
	e.mu.Lock()
	e.answer = &r
	onArrival := e.onArrival
	e.mu.Unlock()
	if onArrival != nil {
		onArrival(r)
	}
}

// OnArrival calls f with the answer, now or as soon as the answer comes. f must return at once.
// If no answer comes, f is not called. OnArrival is called at most once.
func (e *LateError) OnArrival(f func(Result)) {
	e.mu.Lock()
	e.onArrival = f
	answer := e.answer
	e.mu.Unlock()
	if answer != nil {
		f(*answer)
	}
}

package backend

import (
	"errors"
	"sync"
)

// Error means that this Limiter could not decide a hit. The caller may ask another Limiter to decide it.
type Error struct {
	// Reason says why the backend did not decide. With ReasonOverload, the backend itself can be healthy.
	Reason Reason

	// NotSent means that the hit was never sent, so the backend has neither failed nor charged the hit.
	NotSent bool

	// Cause has the details. It can be nil.
	Cause error
}

// ErrUnavailable matches each *Error in errors.Is. It is an *Error without details.
var ErrUnavailable error = &Error{Reason: ReasonOutage}

// Error implements error.
func (e *Error) Error() string {
	text := "rate limit backend unavailable"
	switch e.Reason {
	case ReasonLate:
		text += ": no answer in time"
	case ReasonOverload:
		text += ": this process is overloaded"
	}
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Is reports whether target is ErrUnavailable. See errors.Is.
func (e *Error) Is(target error) bool { return target == ErrUnavailable }

// ReasonOf returns the reason of the *Error in err. If err has no *Error, it returns ReasonNone.
func ReasonOf(err error) Reason {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return ReasonNone
}

// IsNotSent reports whether err is the error of a hit that was never sent.
func IsNotSent(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.NotSent
}

// LateError is the error of a hit that was sent and not answered in time. If the answer still comes, OnArrival tells the
// caller of Take whether the hit was charged. A LateError is safe for concurrent use.
type LateError struct {
	cause error

	mu        sync.Mutex // guards the fields below
	answer    *Result
	onArrival func(Result)
}

// NewLateError returns a LateError without an answer. It wraps cause, and has the text of cause.
func NewLateError(cause error) *LateError { return &LateError{cause: cause} }

// Error implements error.
func (e *LateError) Error() string { return e.cause.Error() }

// Unwrap returns the cause.
func (e *LateError) Unwrap() error { return e.cause }

// SetAnswer sets the answer to the hit. It is called at most once. If r.Allowed is true, the hit was charged. If
// IsNotSent(r.Err) is true, the hit was not charged. With another error, nobody knows whether the hit was charged.
func (e *LateError) SetAnswer(r Result) {
	e.mu.Lock()
	e.answer = &r
	onArrival := e.onArrival
	e.mu.Unlock()
	if onArrival != nil {
		onArrival(r)
	}
}

// OnArrival calls f with the answer, at once or when the answer comes. OnArrival is called at most once, and f must not
// block.
func (e *LateError) OnArrival(f func(Result)) {
	e.mu.Lock()
	e.onArrival = f
	answer := e.answer
	e.mu.Unlock()
	if answer != nil {
		f(*answer)
	}
}

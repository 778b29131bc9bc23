package backend

import "errors"

// Error is the error of a hit that another Limiter may decide. The error of a Result is an *Error or
// wraps one.
type Error struct {
	// Reason is why the backend did not decide. ReasonOverload says nothing about the backend's health.
	Reason Reason

	// NotSent reports that the hit was never sent. So the backend has not charged the hit, and the
	// error is no failure of the backend. Otherwise the backend may have charged the hit.
	NotSent bool

	// Cause has the details. It can be nil.
	Cause error
}

// ErrUnavailable matches each *Error in errors.Is. It is an *Error without details itself.
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

// ReasonOf returns the reason of the *Error in err, or ReasonNone without an *Error.
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

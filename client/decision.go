package client

import (
	"context"
	"fmt"
	"strconv"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/metadata"

	"github.com/seed-81f232ab/rls/limit"
)

// Decision is the answer to a Request.
type Decision struct {
	// Allowed reports whether the permits are granted.
	Allowed bool

	// Limited reports whether a limit counts the request. If Limited is false, no rule matches, and
	// the fields below are zero. A common reason is a wrong domain.
	Limited bool

	// Name, Limit and Window describe the limit that denies the request, or the limit with the fewest permits left: its
	// name, its permits in a window, and the length of the window. Window is 0 if the length is unknown.
	Name   string
	Limit  uint32
	Window time.Duration

	// Remaining is the number of permits that are left.
	Remaining uint32

	// Reset is the time until nothing is spent. The service rounds this time up to whole seconds. If
	// the request is denied, Reset is the time until the same request can pass.
	Reset time.Duration

	// Never reports that the request is denied and can never pass. Reset then has no meaning.
	Never bool

	// Degraded reports that Options.Failure decided, because the service did not answer.
	Degraded bool
}

type call struct {
	request *Request // the call does not use request.N
	n       int      // the number of hits: 0 for a peek, negative for a refund

	chargesNothingIfDenied bool   // a denied call charges no limit
	isGrantDegraded        bool   // Options.Failure has granted the permits that the call refunds
	holdID                 string // the id of a hold of a concurrency limit; "" without a hold
}

// answer is the answer to a call. It also has the times that the client needs to give permits back.
type answer struct {
	Decision // Reset comes from the status of the descriptor that Decision describes

	// retryAfter is the time until a denied call can pass.
	retryAfter time.Duration

	// resetAfter is the time until all limits have forgotten the hits of an allowed call.
	resetAfter time.Duration

	// holdTime is the time after which the service frees a slot that nobody renews. If no limit counts holders, or if
	// another limit denies the call, holdTime is 0.
	holdTime time.Duration

	calledAt time.Time // the time when the client made the call
}

func (a *answer) decision() Decision {
	d := a.Decision
	if !d.Allowed && !d.Never {
		d.Reset = a.retryAfter
	}
	return d
}

// addStatus adds the status of a descriptor. a describes the denied descriptor with the latest reset. If no descriptor
// is denied, a describes the descriptor with the fewest permits left.
func (a *answer) addStatus(status *rlsv3.RateLimitResponse_DescriptorStatus, isDenied bool) {
	reset := status.GetDurationUntilReset().AsDuration()
	describesAnswer := !a.Limited || a.retryAfter == 0 && status.GetLimitRemaining() < a.Remaining
	if isDenied {
		describesAnswer = a.retryAfter == 0 || reset >= a.retryAfter
		a.retryAfter = max(a.retryAfter, reset, time.Microsecond)
	} else {
		a.resetAfter = max(a.resetAfter, reset)
	}
	a.Limited = true
	if describesAnswer {
		l := status.GetCurrentLimit()
		a.Name, a.Limit, a.Window = l.GetName(), l.GetRequestsPerUnit(), windowOf(l)
		a.Remaining, a.Reset = status.GetLimitRemaining(), reset
	}
}

// newAnswer returns the answer of a service to call. header has the times that only rls sends.
func newAnswer(call *call, resp *rlsv3.RateLimitResponse, header metadata.MD) *answer {
	result := &answer{Decision: Decision{Allowed: resp.GetOverallCode() != rlsv3.RateLimitResponse_OVER_LIMIT}}
	exceedsLimit := false // the call asks for more permits than a limit has in a window
	for _, status := range resp.GetStatuses() {
		l := status.GetCurrentLimit()
		if l == nil {
			continue
		}
		isDenied := status.GetCode() == rlsv3.RateLimitResponse_OVER_LIMIT
		exceedsLimit = exceedsLimit || isDenied && int64(call.n) > int64(l.GetRequestsPerUnit())
		result.addStatus(status, isDenied)
	}
	if reset, ok := headerSeconds(header, limit.ResetAfterKey); ok {
		result.resetAfter = reset
	}
	result.holdTime, _ = headerSeconds(header, limit.HoldKey)
	if result.Allowed {
		return result
	}
	switch retryValues := header.Get(limit.RetryAfterKey); {
	case len(retryValues) == 0:
		result.Never = exceedsLimit
	case retryValues[0] == limit.RetryNever:
		result.Never = true
	default:
		if wait, ok := headerSeconds(header, limit.RetryAfterKey); ok {
			result.retryAfter = wait
		}
	}
	return result
}

const maxWindow = limit.MaxPeriod * time.Microsecond

// headerSeconds returns the time in the header with this key, which is a number of seconds such as 1.5. ok is false if the
// header is missing or invalid.
func headerSeconds(header metadata.MD, key string) (_ time.Duration, ok bool) {
	values := header.Get(key)
	if len(values) != 1 {
		return 0, false
	}
	s, err := strconv.ParseFloat(values[0], 64)
	if err != nil || !(s >= 0 && s <= maxWindow.Seconds()) {
		return 0, false
	}
	return time.Duration(s * float64(time.Second)), true
}

var unitWindows = map[rlsv3.RateLimitResponse_RateLimit_Unit]time.Duration{
	rlsv3.RateLimitResponse_RateLimit_SECOND: time.Second,
	rlsv3.RateLimitResponse_RateLimit_MINUTE: time.Minute,
	rlsv3.RateLimitResponse_RateLimit_HOUR:   time.Hour,
	rlsv3.RateLimitResponse_RateLimit_DAY:    24 * time.Hour,
	rlsv3.RateLimitResponse_RateLimit_WEEK:   7 * 24 * time.Hour,
	rlsv3.RateLimitResponse_RateLimit_MONTH:  30 * 24 * time.Hour,
	rlsv3.RateLimitResponse_RateLimit_YEAR:   365 * 24 * time.Hour,
}

// windowOf returns the window of l, or 0 if Envoy does not know the unit.
func windowOf(l *rlsv3.RateLimitResponse_RateLimit) time.Duration {
	window := unitWindows[l.GetUnit()]
	multiplier := time.Duration(max(l.GetUnitMultiplier().GetValue(), 1))
	if window == 0 || multiplier > maxWindow/window {
		return 0
	}
	return window * multiplier
}

// WaitError is the error of an Acquire that can't get its permits before the deadline of its context. Acquire returns a
// WaitError at once, and charges nothing. errors.Is reports that a WaitError is context.DeadlineExceeded.
type WaitError struct {
	// Wait is the shortest time until the permits can come. Hits of other callers can make the time longer.
	Wait time.Duration
}

// Error implements error.
func (e *WaitError) Error() string {
	return fmt.Sprintf("permits come in %s at the earliest, after the deadline of the context", e.Wait.Round(time.Millisecond))
}

// Unwrap returns context.DeadlineExceeded.
func (e *WaitError) Unwrap() error { return context.DeadlineExceeded }

// WeightError is the error of a request for more permits than its limit ever has. Such a
// request can never pass, so methods that wait return a WeightError at once.
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

// Package backend is the contract between the service and what counts for it, and
// the helpers that implementations share.
package backend

import (
	"context"
	"errors"
	"time"

	"github.com/seed-81f232ab/rls/limit"
)

// ErrUnavailable is wrapped by the error of a hit that another Limiter may decide:
// the backend was unreachable, too slow or overloaded.
var ErrUnavailable = errors.New("rate limit backend unavailable")

// ErrOverloaded is wrapped, besides ErrUnavailable, by the error of a hit that this process
// could not handle in time: it was never sent, or its answer was not read. Such an error
// says nothing about the backend's health.
var ErrOverloaded = errors.New("this process is overloaded")

// ErrLate is wrapped, besides ErrUnavailable, by the error of a hit that the backend did not
// answer within the time limit. The hit may be charged, unless the error wraps ErrNotSent too.
var ErrLate = errors.New("no answer in time")

// ErrNotSent is wrapped, besides ErrUnavailable, by the error of a hit that was never sent. So
// the backend has not charged the hit, and the error is no failure of the backend.
var ErrNotSent = errors.New("not sent")

// Hit charges one counter with N hits.
type Hit struct {
	// Key and Limit.Tag together name the counter. Key can have any length and hold
	// any bytes. It is valid only during Take.
	Key []byte

	// Limit decides whether the hit passes.
	Limit *limit.Limit

	// Rule is the path of the rule that has Limit. It is for reports only and can be empty.
	Rule string

	// N is the number of hits to charge; 0 peeks, a negative N refunds.
	N int64

	// HoldID is the id of the hold that the hit takes, renews or ends, or empty. It has a meaning
	// only if the algorithm has holds. See limit.Limit.TakeHold.
	HoldID string

	// Window is the start of the window that a hit on a fixed window must change, in
	// microseconds since 1970. 0 means the window of now. Only Redis supports it.
	Window int64

	// Shadow marks a hit whose denial does not deny the request. It never keeps
	// other hits of the request from being charged.
	Shadow bool
}

// AllOrNone reports whether h belongs to the hits that an all-or-none Limiter
// charges together: if one of them is denied, none of them is charged.
func (h *Hit) AllOrNone() bool { return h.N > 0 && !h.Shadow }

// Source is the part of the service that made a decision.
type Source uint8

// The sources of a decision.
const (
	// SourceLocal is the memory of this process: every limit without Redis, and limits with
	// scope instance.
	SourceLocal Source = iota

	// SourceRedis is Redis.
	SourceRedis

	// SourceDenyCache is a remembered denial.
	SourceDenyCache

	// SourceGuard is the local guard.
	SourceGuard

	// SourceLease is the permits that this process has taken from Redis.
	SourceLease

	// SourceFallback is this process in place of an unavailable backend. The result
	// says nothing about the backend's own counter.
	SourceFallback
)

// Sources lists all sources.
var Sources = [...]Source{SourceLocal, SourceRedis, SourceDenyCache, SourceGuard, SourceLease, SourceFallback}

// String returns the name used in metrics and logs.
func (s Source) String() string {
	return [...]string{"local", "redis", "deny_cache", "guard", "lease", "fallback"}[s]
}

// IsBackend reports whether the backend that keeps the counters decided.
func (s Source) IsBackend() bool { return s == SourceLocal || s == SourceRedis }

// Reason is why a hit was decided without its backend.
type Reason uint8

// The reasons of a decision without the backend.
const (
	// ReasonNone means that the backend, or what remembers its answers, decided.
	ReasonNone Reason = iota

	// ReasonOutage means that the backend failed: no connection, or an error.
	ReasonOutage

	// ReasonBreakerOpen means that the backend was not asked, because it kept failing.
	ReasonBreakerOpen

	// ReasonLate means that the backend had not answered within the time limit, or that the
	// hit waited behind hits that the backend did not answer.
	ReasonLate

	// ReasonOverload means that this process had no room to ask the backend.
	ReasonOverload
)

// Reasons lists all reasons but ReasonNone.
var Reasons = [...]Reason{ReasonOutage, ReasonBreakerOpen, ReasonLate, ReasonOverload}

// String returns the name used in metrics and logs.
func (r Reason) String() string {
	return [...]string{"", "outage", "breaker_open", "late", "overload"}[r]
}

// Result is the decision about one Hit.
type Result struct {
	limit.Result

	// Source made the decision.
	Source Source

	// Window is the start of the window that Redis has charged for a hit on a fixed window, in
	// microseconds since 1970, or 0.
	Window int64

	// Reason and Mode are set if Source is SourceFallback. Reason is why the backend did not
	// decide, and Mode is how the fallback decided: FailLocal, FailAllow or FailDeny.
	Reason Reason
	Mode   limit.FailureMode

	// Err is set if nobody could decide. The rest of the Result is then undefined.
	// Err wraps ErrUnavailable if another Limiter may be tried.
	Err error
}

// Degraded reports whether the fallback decided.
func (r Result) Degraded() bool { return r.Source == SourceFallback }

// Limiter decides and charges hits. Implementations are safe for concurrent use.
type Limiter interface {
	// Take decides the hits of one request at now and sets results[i] for hits[i];
	// both slices have the same length. If a counter occurs twice, the later hit
	// sees the earlier one's charge. An error concerns its own hit only.
	//
	// now is the service's clock. An implementation that shares a clock with other
	// replicas may use that clock instead.
	Take(ctx context.Context, now time.Time, hits []Hit, results []Result)
}

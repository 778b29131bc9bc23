// Package backend is the contract between the service and what counts for it, and
// the helpers that implementations share.
package backend

import (
	"context"
	"time"

	"github.com/seed-81f232ab/rls/limit"
)

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

	// ConfirmsDenial asks the backend to look up whether a denial may end early. Otherwise, the
	// backend may set MayEndEarly of each denial. The lookup costs a little more. The deny cache
	// sets ConfirmsDenial.
	ConfirmsDenial bool

	// Window is the start of the window that a hit on a fixed window must change, in
	// microseconds since 1970. 0 means the window of now. A backend in this process ignores it.
	Window int64

	// Shadow marks a hit whose denial does not deny the request. It never keeps
	// other hits of the request from being charged.
	Shadow bool

	// AllOrNone puts the hit into the group of its Take, if N is positive. The hits of the group
	// are charged together: if one of them denies the group, none of them is charged, even if its
	// limit charges denied hits. A hit that is not denied is then answered as allowed, with what
	// remains for it without the charges.
	AllOrNone bool
}

// InGroup reports whether h belongs to the group of its Take. See AllOrNone.
func (h *Hit) InGroup() bool { return h.AllOrNone && h.N > 0 }

// DeniesGroup reports whether h, which was answered with r, keeps its group from being charged. A
// Shadow hit never does.
func (h *Hit) DeniesGroup(r *Result) bool {
	return h.InGroup() && !h.Shadow && r.Err == nil && !r.Allowed
}

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

	// SourceLease is the permits that this process has taken from Redis.
	SourceLease

	// SourceFallback is this process in place of an unavailable backend. The result
	// says nothing about the backend's own counter.
	SourceFallback
)

var sources = []string{"local", "redis", "deny_cache", "lease", "fallback"}

// NewSource returns the source of a further backend that keeps counters. It is for package variables,
// so Sources is complete when the program starts.
func NewSource(name string) Source {
	sources = append(sources, name)
	return Source(len(sources) - 1)
}

// Sources returns all sources.
func Sources() []Source {
	all := make([]Source, len(sources))
	for i := range all {
		all[i] = Source(i)
	}
	return all
}

// String returns the name used in metrics and logs.
func (s Source) String() string { return sources[s] }

// IsBackend reports whether the backend that keeps the counters decided.
func (s Source) IsBackend() bool { return s == SourceLocal || s == SourceRedis || s > SourceFallback }

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

	// Window is the start of the window that a shared backend has charged for a hit on a fixed window, in
	// microseconds since 1970, or 0.
	Window int64

	// Reason and Mode are set if Source is SourceFallback. Reason is why the backend did not
	// decide, and Mode is how the fallback decided: FailLocal, FailAllow or FailDeny.
	Reason Reason
	Mode   limit.FailureMode

	// Share is the limit that the fallback has applied in place of the hit's limit. It is set if Mode
	// is FailLocal, and nil otherwise.
	Share *limit.Limit

	// MayEndEarly marks a denial that may end before RetryAfter, because charges on the counter may
	// soon be refunded. They belong to a group that is charged in several steps, and a later step
	// can still deny the group.
	MayEndEarly bool

	// Err is set if nobody could decide. The rest of the Result is then undefined.
	// If another Limiter may be tried, Err is or wraps an *Error.
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

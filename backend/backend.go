// Package backend has the interfaces between the service and the implementations that count hits, and helpers that
// implementations share.
package backend

import (
	"context"
	"time"

	"github.com/seed-81f232ab/rls/limit"
)

// Hit charges one counter with N hits.
type Hit struct {
	// Key and Limit.Tag together name the counter. Key can have any length and hold any bytes. It is valid only
	// during Take.
	Key []byte

	Limit  *limit.Limit
	Rule   string // the path of the rule that has Limit; only reports use it, and it can be empty
	N      int64  // the number of hits to charge; 0 peeks, a negative N refunds
	HoldID string // the id of the hold that the hit takes, renews or ends; empty for an anonymous hold; see limit.Limit.TakeHold

	// WindowStart is the start of the fixed window whose count the hit must change, in microseconds since 1970. 0 means
	// the window that contains now. A backend in this process ignores WindowStart.
	WindowStart int64

	Shadow bool // a denial of the hit does not deny the request

	// DenialDeniesCall means that a denial of the hit denies the whole Take, because all its hits belong to one request. It
	// is false in shadow mode and in quota mode. Only the price of an outage uses it.
	DenialDeniesCall bool

	// AllOrNone puts the hit into the group of its Take, if N is positive. If a hit denies the group, no hit of
	// the group is charged, even if its limit charges denied hits. Each hit still gets the answer of its own limit,
	// and Remaining then excludes the charges of the group.
	AllOrNone bool
}

// IsInGroup reports whether h belongs to the group of its Take. See AllOrNone.
func (h *Hit) IsInGroup() bool { return h.AllOrNone && h.N > 0 }

// DeniesGroup reports whether h denies its group. r is the answer to h.
func (h *Hit) DeniesGroup(r *Result) bool {
	return h.IsInGroup() && !h.Shadow && r.Err == nil && !r.Allowed
}

// Source is the part of the service that made a decision.
type Source uint8

// The sources of a decision.
const (
	SourceLocal     Source = iota // counters in this process
	SourceRedis                   // counters in Redis
	SourceDenyCache               // a remembered denial
	SourceLease                   // permits that this process holds
	SourceFallback                // the fallback, because the backend was unavailable
)

var sources = []string{"local", "redis", "deny_cache", "lease", "fallback"}

// NewSource returns the source of a further backend that keeps counters. Call it for package variables only, so that
// Sources is complete when the program starts.
func NewSource(name string) Source {
	sources = append(sources, name)
	return Source(len(sources) - 1)
}

// Sources returns all sources.
func Sources() []Source {
	list := make([]Source, len(sources))
	for i := range list {
		list[i] = Source(i)
	}
	return list
}

// String returns the name used in metrics and logs.
func (s Source) String() string { return sources[s] }

// IsBackend reports whether s is a backend that keeps counters.
func (s Source) IsBackend() bool {
	return s == SourceLocal || s == SourceRedis || s > SourceFallback // the results of NewSource are above SourceFallback
}

// Reason says why a hit was decided without its backend.
type Reason uint8

// The reasons of a decision without the backend.
const (
	ReasonNone        Reason = iota // the backend decided the hit, or a layer did with earlier answers of the backend
	ReasonOutage                    // no connection to the backend, or an error
	ReasonBreakerOpen               // the backend was not asked, because it kept failing
	ReasonLate                      // the backend did not answer this hit, or earlier hits, in time
	ReasonOverload                  // this process had no room to ask the backend
)

// Reasons lists all reasons except ReasonNone.
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

	// WindowStart is the start of the fixed window that a shared backend has charged, in microseconds since 1970.
	// It is 0 for other algorithms and other backends.
	WindowStart int64

	// Reason and Mode are set if Source is SourceFallback. Reason says why the backend did not decide. Mode says how
	// the fallback decided: FailLocal, FailAllow or FailDeny.
	Reason Reason
	Mode   limit.FailureMode

	// Share is the limit that the fallback has applied if Mode is FailLocal, and nil otherwise.
	Share *limit.Limit

	// DenialMayEndEarly means that a denial may end before RetryAfter, because some charges of the counter may be refunded.
	// A backend that charges a group in several steps refunds the first charges if a later step denies the group.
	DenialMayEndEarly bool

	// Err is set if nobody could decide, and the other fields are then undefined. If another Limiter may decide the
	// hit, Err has an *Error in its chain.
	Err error
}

// IsDegraded reports whether the fallback decided.
func (r Result) IsDegraded() bool { return r.Source == SourceFallback }

// Limiter decides and charges hits. Implementations are safe for concurrent use.
type Limiter interface {
	// Take decides the hits of one request at now and sets results[i] for hits[i]; both slices have the same
	// length. A later hit on a counter sees the charge of an earlier hit. An error concerns its own hit only.
	// An implementation that shares a clock with other replicas may use that clock in place of now.
	Take(ctx context.Context, now time.Time, hits []Hit, results []Result)
}

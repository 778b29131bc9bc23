// Package decisionlog describes single decisions to people and programs: as a stream of
// live decisions, and as a log.
//
// Terms:
//
//   - record: the description of one decision, or of a descriptor that no limit decided;
//   - subscriber: a reader of live records;
//   - dropped: a record is dropped if its buffer is full. A call never waits.
package decisionlog

import (
	"context"
	"slices"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed-81f232ab/rls/internal/base/entrytext"
	"github.com/seed-81f232ab/rls/service"
)

// Code is the outcome of a decision.
type Code string

// The codes of records.
const (
	OK        Code = "OK"
	OverLimit Code = "OVER_LIMIT"
	Failed    Code = "ERROR" // nobody could decide, or the request was invalid
)

// Record describes the decision of one limit about one descriptor, or a descriptor without a decision.
type Record struct {
	Time            time.Time `json:"time"`
	Domain          string    `json:"domain"`
	Descriptor      []Entry   `json:"descriptor,omitempty"` // as the request has it
	DescriptorIndex int       `json:"descriptor_index"`     // place of the descriptor in the request, from 0
	Rule            string    `json:"rule,omitempty"`       // path of the rule that matched: `shop > tenant=acme`

	// Limit is the limit in short: `10 per minute`. It is empty if no limit decided,
	// because the rule is unlimited or its limits are replaced.
	Limit           string `json:"limit,omitempty"`
	LimitName       string `json:"limit_name,omitempty"`
	RequestsPerUnit uint32 `json:"requests_per_unit"`

	Code        Code  `json:"code"`         // decision of the limit
	OverallCode Code  `json:"overall_code"` // answer to the whole call
	Hits        int64 `json:"hits"`         // of the descriptor: 0 for a peek, negative for a refund
	Remaining   int64 `json:"remaining"`

	// Hold is the id of the hold that a decision about a concurrency limit takes, renews or ends. It
	// is empty for an anonymous hold. Acquire reports that the caller waits for permits, so that a
	// denied call charges nothing.
	Hold    string `json:"hold,omitempty"`
	Acquire bool   `json:"acquire,omitempty"`

	Source   string `json:"source,omitempty"` // the part of the service that decided
	Degraded bool   `json:"degraded"`         // the fallback decided
	Reason   string `json:"reason,omitempty"` // why the backend did not decide, if Degraded
	Mode     string `json:"mode,omitempty"`   // how the fallback decided, if Degraded

	Shadow bool            `json:"shadow"`           // in shadow mode: the request passes even if Code is OverLimit
	Switch *service.Switch `json:"switch,omitempty"` // that has taken the limits of the descriptor out of force
	Error  string          `json:"error,omitempty"`  // why Code is Failed

	DurationMicros int64  `json:"duration_us"`        // of the call
	TraceID        string `json:"trace_id,omitempty"` // of the call; empty without tracing
}

// Entry is a key and a value of a descriptor.
type Entry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// FormatEntries returns a descriptor in the form of the command line: `tenant=acme,path=/`.
func FormatEntries(entries []Entry) string { return entrytext.Format(RequestEntries(entries)) }

// RequestEntries returns the entries as a request has them.
func RequestEntries(entries []Entry) []*ratelimitv3.RateLimitDescriptor_Entry {
	requested := make([]*ratelimitv3.RateLimitDescriptor_Entry, len(entries))
	for i, e := range entries {
		requested[i] = &ratelimitv3.RateLimitDescriptor_Entry{Key: e.Key, Value: e.Value}
	}
	return requested
}

// outcome is the content of a Record before it is written.
type outcome struct {
	call       *service.Call
	descriptor int // its place in the request; 0 if the request has none
	code       Code
	decided    bool
	decision   service.Decision // undefined unless decided

	decisionsRead int // number of decisions that next has returned
}

// newOutcomes returns an iterator before the first outcome of c. A request without descriptors has one outcome.
func newOutcomes(c *service.Call) outcome { return outcome{call: c, descriptor: -1} }

// next moves o to the next outcome of its call. It reports false after the last outcome.
func (o *outcome) next() bool {
	c := o.call
	hasDecision := o.decisionsRead < c.Decisions()
	if hasDecision {
		o.decision = c.Decision(o.decisionsRead)
	}
	if isSameDescriptor := o.decided && hasDecision && o.decision.Descriptor == o.descriptor; !isSameDescriptor {
		if o.descriptor++; o.descriptor >= max(len(c.Request.GetDescriptors()), 1) {
			return false
		}
	}
	o.decided = hasDecision && o.decision.Descriptor == o.descriptor
	err, isAllowed := c.Err, true
	if o.decided {
		o.decisionsRead++
		err, isAllowed = o.decision.Result.Err, o.decision.Result.Allowed
	}
	switch {
	case err != nil:
		o.code = Failed
	case isAllowed:
		o.code = OK
	default:
		o.code = OverLimit
	}
	return true
}

func (o *outcome) requestEntries() []*ratelimitv3.RateLimitDescriptor_Entry {
	if o.descriptor >= len(o.call.Request.GetDescriptors()) {
		return nil
	}
	return o.call.Request.Descriptors[o.descriptor].GetEntries()
}

// entries returns a copy of the entries of the descriptor.
func (o *outcome) entries() []Entry {
	requested := o.requestEntries()
	entries := slices.Grow([]Entry(nil), len(requested))
	for _, e := range requested {
		entries = append(entries, Entry{e.GetKey(), e.GetValue()})
	}
	return entries
}

func (o *outcome) rule() string {
	if o.descriptor >= len(o.call.Rules) || o.call.Rules[o.descriptor] == nil {
		return ""
	}
	return o.call.Rules[o.descriptor].Path
}

func (o *outcome) source() string {
	if !o.decided || o.decision.Result.Err != nil {
		return ""
	}
	return o.decision.Result.Source.String()
}

// record returns the Record of o. The call with context ctx took duration.
func (o *outcome) record(ctx context.Context, duration time.Duration) Record {
	c := o.call
	r := Record{
		Time:           c.Start.UTC(),
		Domain:         c.Request.GetDomain(),
		Descriptor:     o.entries(),
		Rule:           o.rule(),
		Code:           o.code,
		OverallCode:    overallCode(c),
		Source:         o.source(),
		DurationMicros: duration.Microseconds(),
	}
	if span := trace.SpanContextFromContext(ctx); span.HasTraceID() {
		r.TraceID = span.TraceID().String()
	}
	if o.descriptor < len(c.Request.GetDescriptors()) {
		r.Switch = c.Switch(o.descriptor)
		r.DescriptorIndex, r.Hits = o.descriptor, c.RequestedHits(o.descriptor)
	}
	if r.Rule != "" {
		r.Shadow = c.Rules[o.descriptor].ShadowMode || c.GlobalShadow
	}
	if !o.decided {
		if c.Err != nil {
			r.Error = c.Err.Error()
		}
		return r
	}
	d := &o.decision
	r.Shadow = d.Shadow || c.GlobalShadow
	r.Limit, r.LimitName, r.RequestsPerUnit = d.Limit.String(), d.Limit.Name, d.Limit.Requests
	r.Hold, r.Acquire = d.HoldID, c.IsAcquire()
	if d.Result.Err != nil {
		r.Error = d.Result.Err.Error()
		return r
	}
	r.Remaining = max(d.Result.Remaining, 0)
	if r.Degraded = d.Result.Degraded(); r.Degraded {
		r.Reason, r.Mode = d.Result.Reason.String(), d.Result.Mode.String()
	}
	return r
}

func overallCode(c *service.Call) Code {
	if c.Err != nil {
		return Failed
	}
	return Code(c.Response.GetOverallCode().String())
}

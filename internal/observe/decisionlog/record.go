// Package decisionlog describes single decisions for people and programs: in a stream of
// live decisions, and in a log.
//
// Terms:
//
//   - record: the description of one decision, or of a descriptor that no limit decided;
//   - subscriber: a reader of live records;
//   - dropped: not sent or not written, for example because a buffer is full. A call never waits.
package decisionlog

import (
	"context"
	"hash/maphash"
	"slices"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/internal/base/entrytext"
	"github.com/seed-81f232ab/rls/service"
)

// Code is the result of a decision.
type Code string

// The codes of records.
const (
	OK        Code = "OK"
	OverLimit Code = "OVER_LIMIT"
	Failed    Code = "ERROR" // no part of the service could decide, or the request was invalid
)

// Record describes the decision of one limit on one descriptor, or a descriptor without a decision.
type Record struct {
	Time            time.Time `json:"time"`
	Domain          string    `json:"domain"`
	Descriptor      []Entry   `json:"descriptor,omitempty"` // the entries in the request
	DescriptorIndex int       `json:"descriptor_index"`     // the index of the descriptor in the request, from 0
	Rule            string    `json:"rule,omitempty"`       // the path of the rule that matched: `shop > tenant=acme`

	// Limit is the limit in short: `10 per minute`. It is empty if no limit decided,
	// because the rule is unlimited or its limits are replaced.
	Limit           string `json:"limit,omitempty"`
	LimitName       string `json:"limit_name,omitempty"`
	RequestsPerUnit uint32 `json:"requests_per_unit"`

	Code        Code  `json:"code"`         // the decision of the limit
	OverallCode Code  `json:"overall_code"` // the answer to the whole call
	Hits        int64 `json:"hits"`         // the hits of the descriptor: 0 for a peek, negative for a refund
	Remaining   int64 `json:"remaining"`

	// Hold is the id of the hold that a decision on a concurrency limit takes, renews or ends. It is empty for an
	// anonymous hold. Acquire reports whether the caller waits for permits. If so, a denied call charges nothing.
	Hold    string `json:"hold,omitempty"`
	Acquire bool   `json:"acquire,omitempty"`

	Source   string `json:"source,omitempty"` // the part of the service that decided
	Degraded bool   `json:"degraded"`         // the fallback made the decision
	Reason   string `json:"reason,omitempty"` // the reason why the backend did not decide, if Degraded
	Mode     string `json:"mode,omitempty"`   // the way in which the fallback decided, if Degraded

	Shadow bool            `json:"shadow"`           // the limit is in shadow mode, so the request passes even if Code is OverLimit
	Switch *service.Switch `json:"switch,omitempty"` // the switch that has taken the limits of the descriptor out of force
	Error  string          `json:"error,omitempty"`  // the error if Code is Failed

	// Caller is the address of the caller, the name in its client certificate and the name that it sends.
	Caller string `json:"caller,omitempty"`

	DurationMicros int64  `json:"duration_us"`        // the duration of the call
	TraceID        string `json:"trace_id,omitempty"` // the trace of the call; empty without tracing
}

// Entry is a key and a value of a descriptor.
type Entry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// FormatEntries returns a descriptor in the form of the command line: `tenant=acme,path=/`.
func FormatEntries(entries []Entry) string { return entrytext.Format(RequestEntries(entries)) }

// RequestEntries returns the entries in the form of a request.
func RequestEntries(entries []Entry) []*ratelimitv3.RateLimitDescriptor_Entry {
	requestEntries := make([]*ratelimitv3.RateLimitDescriptor_Entry, len(entries))
	for i, e := range entries {
		requestEntries[i] = &ratelimitv3.RateLimitDescriptor_Entry{Key: e.Key, Value: e.Value}
	}
	return requestEntries
}

// outcome is a decision of a call, or a descriptor without a decision. A Record describes an outcome.
type outcome struct {
	call            *service.Call
	descriptorIndex int // the index of the descriptor in the request; 0 if the request has no descriptors
	code            Code
	hasDecision     bool
	decision        service.Decision // has no meaning without hasDecision

	nextDecision int // the index of the decision that advance reads next
}

// newOutcomes returns an iterator before the first outcome of c. A request without descriptors has one outcome.
func newOutcomes(c *service.Call) outcome { return outcome{call: c, descriptorIndex: -1} }

// advance moves o to the next outcome of the call. It reports false after the last outcome.
func (o *outcome) advance() bool {
	call := o.call
	hasNextDecision := o.nextDecision < call.DecisionCount()
	if hasNextDecision {
		o.decision = call.Decision(o.nextDecision)
	}
	if isSameDescriptor := o.hasDecision && hasNextDecision && o.decision.Descriptor == o.descriptorIndex; !isSameDescriptor {
		if o.descriptorIndex++; o.descriptorIndex >= max(len(call.Request.GetDescriptors()), 1) {
			return false
		}
	}
	o.hasDecision = hasNextDecision && o.decision.Descriptor == o.descriptorIndex
	err, isAllowed := call.Err, true
	if o.hasDecision {
		o.nextDecision++
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
	if o.descriptorIndex >= len(o.call.Request.GetDescriptors()) {
		return nil
	}
	return o.call.Request.Descriptors[o.descriptorIndex].GetEntries()
}

func (o *outcome) entries() []Entry {
	requestEntries := o.requestEntries()
	entries := slices.Grow([]Entry(nil), len(requestEntries))
	for _, e := range requestEntries {
		entries = append(entries, Entry{e.GetKey(), e.GetValue()})
	}
	return entries
}

func (o *outcome) rule() string {
	if o.descriptorIndex >= len(o.call.Rules) || o.call.Rules[o.descriptorIndex] == nil {
		return ""
	}
	return o.call.Rules[o.descriptorIndex].Path
}

func (o *outcome) source() string {
	if !o.hasDecision || o.decision.Result.Err != nil {
		return ""
	}
	return o.decision.Result.Source.String()
}

// hash returns the hash of the counter of the decision. Without a decision, hash returns the hash of the reason of the
// failure, or of the descriptor.
func (o *outcome) hash(seed maphash.Seed) uint64 {
	switch {
	case o.hasDecision:
		return maphash.Bytes(seed, o.decision.Key)
	case o.call.Err != nil:
		return maphash.String(seed, status.Convert(o.call.Err).Message())
	}
	var h maphash.Hash
	h.SetSeed(seed)
	_, _ = h.WriteString(o.call.Request.GetDomain()) // maphash never fails
	for _, e := range o.requestEntries() {
		_, _ = h.WriteString(e.GetKey())
		_, _ = h.WriteString(e.GetValue())
	}
	return h.Sum64()
}

func (o *outcome) record(ctx context.Context, duration time.Duration) Record {
	call := o.call
	record := Record{
		Time:           call.Start.UTC(),
		Domain:         call.Request.GetDomain(),
		Descriptor:     o.entries(),
		Rule:           o.rule(),
		Code:           o.code,
		OverallCode:    overallCode(call),
		Source:         o.source(),
		Caller:         string(call.AppendCaller(nil, ctx)),
		DurationMicros: duration.Microseconds(),
	}
	if span := trace.SpanContextFromContext(ctx); span.HasTraceID() {
		record.TraceID = span.TraceID().String()
	}
	if o.descriptorIndex < len(call.Request.GetDescriptors()) {
		record.Switch = call.Switch(o.descriptorIndex)
		record.DescriptorIndex, record.Hits = o.descriptorIndex, call.RequestedHits(o.descriptorIndex)
	}
	if record.Rule != "" {
		record.Shadow = call.Rules[o.descriptorIndex].ShadowMode || call.GlobalShadow
	}
	if !o.hasDecision {
		if call.Err != nil {
			record.Error = call.Err.Error()
		}
		return record
	}
	decision := &o.decision
	record.Shadow = decision.Shadow || call.GlobalShadow
	record.Limit, record.LimitName, record.RequestsPerUnit = decision.Limit.String(), decision.Limit.Name, decision.Limit.Requests
	record.Hold, record.Acquire = decision.HoldID, call.IsAcquire
	if decision.Result.Err != nil {
		record.Error = decision.Result.Err.Error()
		return record
	}
	record.Remaining = max(decision.Result.Remaining, 0)
	if record.Degraded = decision.Result.IsDegraded(); record.Degraded {
		record.Reason, record.Mode = decision.Result.Reason.String(), decision.Result.Mode.String()
	}
	return record
}

func overallCode(c *service.Call) Code {
	if c.Err != nil {
		return Failed
	}
	return Code(c.Response.GetOverallCode().String())
}

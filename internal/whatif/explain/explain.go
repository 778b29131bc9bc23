// Package explain explains the answer to a request: the rule that limits each descriptor, the reason why this rule
// wins, the counters, and the answer that the next hit would get. An explanation changes nothing.
//
// The package calls the service itself, with a backend that only peeks. So the explanation
// can't differ from the decision.
package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/backend/region"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/entrytext"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
	"github.com/seed-81f232ab/rls/service/quota"
)

// Options are the options of New. Only Limits is required.
type Options struct {
	Limits *descriptors.Store // the limits in force
	Layer  backend.Layer      // the backend of the service; if Layer is nil, all counters count as empty

	RedisKey     func(*backend.Hit) (server, key string)   // returns the place of the counter of a hit; nil without Redis
	HeldPermits  func(now time.Time, h *backend.Hit) int64 // returns the permits of the counter that this replica holds; nil without leases
	RegionHits   func(h *backend.Hit) *region.HeldHits     // returns what the region has of a limit of all regions; nil without regions
	Shares       func(counter string) *quota.CounterShares // returns the shares of Envoys; nil if Envoys can't share limits
	FailingSince func(*backend.Hit) time.Time              // returns the time since which the backend of a hit fails, or the zero Time

	AllOrNone, ShadowMode, QuotaMode bool // the settings of the service

	Candidate *Explainer       // explains the candidate limits; nil without a candidate
	Now       func() time.Time // the default is time.Now
}

// Explainer explains requests. It is safe for concurrent use.
type Explainer struct {
	options Options

	mu sync.Mutex // allows one explanation at a time, because an explanation costs much CPU time
}

// New returns an Explainer.
func New(options Options) *Explainer {
	if options.Now == nil {
		options.Now = time.Now
	}
	return &Explainer{options: options}
}

// Explain returns the report about a request.
func (e *Explainer) Explain(ctx context.Context, req *rlsv3.RateLimitRequest) *Report {
	e.mu.Lock()
	defer e.mu.Unlock()
	options := e.options
	now := options.Now()
	report := &Report{
		Domain: req.Domain, Time: now.UTC(), Descriptors: []Descriptor{},
		Offline: options.Layer == nil,
	}
	if report.Offline {
		options.Layer = backend.Counters{Limiter: local.New(local.Options{})} // empty counters
	}
	config := options.Limits.Load()
	var fixedStore descriptors.Store // a reload does not change fixedStore between the answer and its explanation
	if config != nil {
		fixedStore.Set(config)
	}
	peeker := &peeker{options: &options}
	reporter := &reporter{options: &options, now: now, report: report, peeker: peeker, config: config}
	explainedService := service.New(service.Options{
		Limits: &fixedStore, Limiter: peeker, Observers: []service.Observer{reporter}, Now: func() time.Time { return now },
		ShadowMode: options.ShadowMode, QuotaMode: options.QuotaMode, AllOrNone: options.AllOrNone,
	})
	_, _ = explainedService.ShouldRateLimit(ctx, req) // the reporter gets the response
	if candidate := options.Candidate; candidate != nil && candidate.options.Limits.Load() != nil {
		report.Candidate = candidate.Explain(ctx, req)
	}
	return report
}

// reporter is a service.Observer that fills the report.
type reporter struct {
	options *Options
	now     time.Time
	report  *Report
	peeker  *peeker
	config  *descriptors.Config
	domain  *descriptors.Domain // nil if the domain is unknown
	budget  descriptors.Budget  // the budget of the traces; it starts with the same value as the budget of the call
}

func (r *reporter) CallAnswered(_ context.Context, call *service.Call) {
	report := r.report
	if call.Err != nil {
		report.Error = status.Convert(call.Err).Message()
	} else {
		report.Code, report.GlobalShadowMode = call.Response.OverallCode.String(), call.GlobalShadow
	}
	if r.config == nil {
		return
	}
	if r.domain = r.config.Domain(call.Request.Domain); r.domain == nil {
		report.UnknownDomain = r.unknownDomain(call.Request)
	} else {
		report.Place = placeText(r.domain.Source.File, r.domain.Source.Line)
		if s := r.domain.Source.OffSwitch; s != nil {
			report.Switches = append(report.Switches, "all limits of "+cmp.Or(fields.Printable(s.Target), "all domains")+" are switched off"+s.String())
		}
	}
	if s := r.config.ShadowMode; s != nil {
		report.Switches = append(report.Switches, fmt.Sprintf("SHADOW_MODE is switched to %t%s", s.IsOn, s.Notes))
	}
	for i := range call.Request.Descriptors {
		report.Descriptors = append(report.Descriptors, r.explainDescriptor(call, i))
	}
}

func (r *reporter) unknownDomain(req *rlsv3.RateLimitRequest) *UnknownDomain {
	const maxNames = 20
	names := []string{}
	unknownDomain := &UnknownDomain{}
	var budget descriptors.Budget
	for _, d := range r.config.Domains() {
		names = append(names, d.Name)
		hasRules := !slices.ContainsFunc(req.Descriptors, func(descriptor *ratelimitv3.RateLimitDescriptor) bool {
			return descriptor.GetLimit() != nil || d.MatchWithBudget(&budget, descriptor.GetEntries()) == nil
		})
		if hasRules && len(unknownDomain.WithRule) < maxNames {
			unknownDomain.WithRule = append(unknownDomain.WithRule, d.Name)
		}
	}
	unknownDomain.Nearest, unknownDomain.Count, unknownDomain.Domains = fields.Nearest(req.Domain, names), len(names), names[:min(len(names), maxNames)]
	return unknownDomain
}

func (r *reporter) explainDescriptor(call *service.Call, i int) Descriptor {
	request := call.Request.Descriptors[i]
	descriptor := Descriptor{Descriptor: entrytext.Format(request.GetEntries()), Hits: call.RequestedHits(i), Levels: []Level{}, Limits: []Limit{}}
	var rule *descriptors.Rule
	if i < len(call.Rules) {
		rule = call.Rules[i]
	}
	var fileDescriptor *limitsfile.Descriptor
	var trace descriptors.Trace
	if r.domain != nil && request.GetLimit() == nil {
		trace = r.domain.TraceWithBudget(&r.budget, request.GetEntries())
		for j := range trace.Steps {
			descriptor.Levels = append(descriptor.Levels, explainLevel(&trace.Steps[j]))
		}
		if n := len(trace.Trail); n > 0 && n == len(request.GetEntries()) {
			fileDescriptor = trace.Trail[n-1]
		}
	}
	if rule != nil {
		descriptor.Rule, descriptor.ShadowMode, descriptor.QuotaMode, descriptor.MaxHits = rule.Path, rule.ShadowMode, rule.QuotaMode || r.options.QuotaMode, rule.MaxHits
	}
	descriptor.Enforcement = newEnforcement(call, i, rule)
	if fileDescriptor != nil {
		descriptor.Place = placeText(fileDescriptor.File, fileDescriptor.Line)
		if denial := fileDescriptor.Denial; denial != nil {
			descriptor.Denial = &Denial{Body: string(denial.Body)}
			for _, h := range denial.Headers {
				descriptor.Denial.Headers = append(descriptor.Denial.Headers, h.GetKey()+": "+h.GetValue())
			}
		}
		if fileDescriptor.CreationNotes != nil {
			descriptor.Created = new(newOverride(limitsfile.AppliedOverride{Notes: *fileDescriptor.CreationNotes}))
		}
		for _, appliedOverride := range fileDescriptor.Overrides {
			descriptor.Overrides = append(descriptor.Overrides, newOverride(appliedOverride))
		}
	}
	descriptor.Limits = append(descriptor.Limits, r.explainLimits(call, i, rule, fileDescriptor)...)
	if call.Response != nil {
		answer := call.Response.Statuses[i]
		descriptor.Code, descriptor.Remaining = answer.Code.String(), answer.LimitRemaining
		descriptor.DecidingLimit = r.decidingLimit(call, i, rule)
	}
	descriptor.Summary = r.summary(call, request, &descriptor, rule, fileDescriptor, &trace)
	return descriptor
}

// newEnforcement describes the field enforce of rule for descriptor i. It returns nil if the rule can deny all keys.
func newEnforcement(call *service.Call, i int, rule *descriptors.Rule) *Enforcement {
	if rule == nil || rule.EnforcedPercent() == 100 {
		return nil
	}
	enforcement := &Enforcement{Percent: rule.EnforcedPercent(), IncludesKey: true}
	for j := range call.DecisionCount() {
		if decision := call.Decision(j); decision.Descriptor == i {
			enforcement.IncludesKey = !decision.Shadow
		}
	}
	return enforcement
}

func newOverride(o limitsfile.AppliedOverride) Override {
	return Override{
		Target: o.Target, Off: o.IsSwitch, Author: o.Author, Reason: o.Reason, BaseLimits: o.BaseLimits,
		SetAt: utcOrNil(o.SetAt), ExpiresAt: utcOrNil(o.ExpiresAt),
	}
}

func utcOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return new(t.UTC())
}

// explainLimits explains the limits of descriptor i. fileDescriptor is the descriptor in the limits files that matches
// the last entry. It is nil if no descriptor matches, or if the request has its own limit.
func (r *reporter) explainLimits(call *service.Call, i int, rule *descriptors.Rule, fileDescriptor *limitsfile.Descriptor) []Limit {
	var limitsInForce []*descriptors.RateLimit // the limits of rule that are not explained yet
	if rule != nil {
		limitsInForce = rule.Limits
	}
	var limits []Limit
	if fileDescriptor == nil {
		for _, requestLimit := range limitsInForce {
			limitReport := r.explainLimit(call, i, requestLimit)
			if rule != r.domain.UntestedRule {
				limitReport.FromRequest = true
				if file, line := r.domain.Source.DefaultsPlace(); file != "" {
					limitReport.DefaultsPlace, limitReport.FromDefaults = placeText(file, line), r.domain.Source.RequestLimitDefaults()
				}
			}
			limits = append(limits, limitReport)
		}
		return limits
	}
	for _, fileLimit := range fileDescriptor.Limits {
		var limitReport Limit
		if fileLimit.Enabled && len(limitsInForce) > 0 {
			limitReport = r.explainLimit(call, i, limitsInForce[0])
			limitsInForce = limitsInForce[1:]
		} else {
			limitReport = effectiveValues(fileLimit.Limit)
			limitReport.Name, limitReport.State = fileLimit.Name, Off
			if fileLimit.Enabled && isRejected(call) {
				limitReport.State = Rejected
			}
		}
		if fileLimit.Line > 0 {
			limitReport.Place = placeText(fileDescriptor.File, fileLimit.Line)
		}
		limitReport.FromOverride, limitReport.FromDefaults = fileLimit.OverrideFields(), fileLimit.DefaultFields()
		if fileDescriptor.OffSwitch() != nil { // enabled comes from the switch
			limitReport.FromOverride = slices.DeleteFunc(limitReport.FromOverride, func(field string) bool { return field == "enabled" })
		}
		if len(limitReport.FromDefaults) > 0 {
			limitReport.DefaultsPlace = placeText(r.domain.Source.DefaultsPlace())
		}
		limits = append(limits, limitReport)
	}
	return limits
}

func effectiveValues(countedLimit *limit.Limit) Limit {
	if countedLimit == nil {
		return Limit{Limit: "unlimited"}
	}
	values := Limit{
		Limit: countedLimit.String(), RequestsPerUnit: countedLimit.Requests, Unit: countedLimit.Unit.String(), UnitMultiplier: countedLimit.Multiplier, Timezone: countedLimit.Timezone,
		Algorithm: countedLimit.Algorithm.String(), Burst: countedLimit.Burst, Scope: countedLimit.Scope.String(), ChargeDenied: countedLimit.ChargeDenied,
		OnBackendFailure: countedLimit.OnBackendFailure.String(), FallbackRatio: countedLimit.FallbackRatio,
		Lease: countedLimit.Lease, LeaseWaste: countedLimit.LeaseWaste,
	}
	if countedLimit.Hold != 0 {
		values.Hold = limit.DurationText(countedLimit.Hold)
	}
	return values
}

func (r *reporter) explainLimit(call *service.Call, i int, explainedLimit *descriptors.RateLimit) Limit {
	limitReport := effectiveValues(explainedLimit.Limit)
	limitReport.Name = explainedLimit.Name
	for j := range call.DecisionCount() {
		if d := call.Decision(j); d.Descriptor == i && d.Limit == explainedLimit {
			limitReport.State = Counted
			r.setCounter(&limitReport, &d, &r.peeker.peeks[j])
			return limitReport
		}
	}
	switch {
	case explainedLimit.Unlimited:
		limitReport.State = Unlimited
	case isRejected(call):
		limitReport.State = Rejected
	default:
		limitReport.State, limitReport.ReplacedBy = Replaced, replacingLimit(call, explainedLimit.Name)
	}
	return limitReport
}

// isRejected reports whether the service has rejected c, for example because the rule allows no refund.
func isRejected(c *service.Call) bool { return c.Err != nil && c.DecisionCount() == 0 }

// replacingLimit returns the name and the rule of the limit that replaces the limits with this name.
func replacingLimit(c *service.Call, name string) string {
	for _, rule := range c.Rules {
		if rule == nil {
			continue
		}
		for _, l := range rule.Limits {
			switch {
			case !slices.Contains(l.Replaces, name):
			case l.Name == "":
				return rule.Path
			default:
				return fmt.Sprintf("limit %s of %s", fields.Printable(l.Name), rule.Path)
			}
		}
	}
	return ""
}

func (r *reporter) setCounter(limitReport *Limit, decision *service.Decision, peek *peek) {
	countedLimit := decision.Limit.Limit
	limitReport.Counter = &Counter{Name: string(decision.Key), Tag: countedLimit.Tag()}
	if r.options.RedisKey != nil && countedLimit.Scope != limit.Instance {
		limitReport.Counter.Server, limitReport.Counter.Key = r.options.RedisKey(decision.Hit)
	}
	if r.options.HeldPermits != nil {
		limitReport.Counter.Permits = r.options.HeldPermits(r.now, decision.Hit)
	}
	if r.options.RegionHits != nil {
		limitReport.Counter.Region = r.options.RegionHits(decision.Hit)
	}
	switch result := peek.Result; {
	case result.Err != nil, result.IsDegraded() && result.Share == nil:
		limitReport.Counter.Unknown, limitReport.Counter.Degraded = true, result.IsDegraded()
	default:
		limitReport.Counter.Degraded = result.IsDegraded()
		shareOrLimit := cmp.Or(result.Share, countedLimit)
		limitReport.Counter.Capacity, limitReport.Counter.Remaining = shareOrLimit.Capacity(), result.Remaining
		limitReport.Counter.Spent = shareOrLimit.Spent(result.Result)
		if countedLimit.Algorithm.HasHolds() {
			limitReport.Counter.FirstExpiryAt = r.timeAfter(result.ResetAfter)
			break
		}
		limitReport.Counter.ResetAt = r.timeAfter(result.ResetAfter)
		if countedLimit.Algorithm.ResetsAtWindowEnd() && result.ResetAfter > 0 {
			limitReport.Counter.WindowStart = new(r.timeAt(countedLimit.WindowStart(r.now.UnixMicro()+result.ResetAfter) - r.now.UnixMicro()))
		}
	}
	if r.options.Shares != nil {
		limitReport.Shares = r.options.Shares(limitReport.Counter.Name)
	}
	result := decision.Result
	answer := &Answer{Allowed: result.Allowed, Remaining: max(result.Remaining, 0), Source: result.Source.String(), Reason: result.Reason.String(), Mode: result.Mode.String()}
	limitReport.NextHit = answer
	if result.Err != nil {
		*answer = Answer{Error: result.Err.Error()}
		return
	}
	answer.Never = !result.Allowed && result.RetryAfter == limit.Never
	if !result.Allowed && result.RetryAfter > 0 && peek.isRetryExact && result.Mode != limit.FailDeny {
		answer.RetryAt = r.timeAfter(result.RetryAfter)
	}
	switch result.Source {
	case backend.SourceLocal:
		answer.By = "this replica"
	case backend.SourceRedis:
		answer.By = "Redis"
	case backend.SourceFallback:
		answer.By = "the fallback in this replica"
		if r.options.FailingSince != nil {
			answer.Since = utcOrNil(r.options.FailingSince(decision.Hit))
		}
	case backend.SourceDenyCache:
		answer.By, answer.Since, answer.Until = "the deny cache of this replica", utcOrNil(peek.Denial.FirstDenialTime), answer.RetryAt
	default:
		if result.Source.IsBackend() {
			answer.By = result.Source.String()
		}
	}
}

// timeAfter returns now plus micros, rounded to a millisecond, or nil if micros is 0.
func (r *reporter) timeAfter(micros int64) *time.Time {
	if micros == 0 {
		return nil
	}
	return new(r.timeAt(micros))
}

func (r *reporter) timeAt(micros int64) time.Time {
	return r.now.Add(time.Duration(micros) * time.Microsecond).UTC().Round(time.Millisecond)
}

// decidingLimit returns the index of the limit that the status of descriptor i describes, or nil.
func (r *reporter) decidingLimit(c *service.Call, i int, rule *descriptors.Rule) *int {
	answer := c.Response.Statuses[i]
	if rule == nil || answer.CurrentLimit == nil {
		return nil
	}
	j := slices.IndexFunc(rule.Limits, func(l *descriptors.RateLimit) bool { return l.Response == answer.CurrentLimit })
	if j < 0 {
		return nil
	}
	return &j
}

// placeText returns file:line, or only the file if the line is 0.
func placeText(file string, line int) string { return fields.FileLine(fields.Printable(file), line) }

func explainLevel(step *descriptors.Step) Level {
	level := Level{Entry: descriptors.EntryLabel(step.Entry), Compared: step.SiblingCount, OtherValues: step.OtherValueCount}
	for i := range step.Candidates {
		c := &step.Candidates[i]
		candidate := Candidate{
			Descriptor: c.Label(), Place: placeText(c.File, c.Line), Match: c.Kind.String(), Difference: c.Difference.String(), Reason: candidateReason(step, c),
		}
		if c == step.Winner {
			level.Winner = &candidate
		} else {
			level.Others = append(level.Others, candidate)
		}
	}
	return level
}

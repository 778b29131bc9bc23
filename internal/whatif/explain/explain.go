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
	Shares       func(counter string) *quota.CounterShares // returns the shares of Envoys; nil if Envoys can't share limits
	FailingSince func(*backend.Hit) time.Time              // returns the time since which the backend of a hit fails, or the zero Time

	AllOrNone, ShadowMode, QuotaMode bool // the settings of the service

	Candidate *Explainer       // explains the candidate limits; nil without a candidate
	Now       func() time.Time // the default is time.Now
}

// Explainer explains requests. It is safe for concurrent use.
type Explainer struct {
	options Options

	mu sync.Mutex // allows one explanation at a time, because an explanation compares all rules of a level
}

// New returns an Explainer.
func New(o Options) *Explainer {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Explainer{options: o}
}

// Explain returns the report about a request.
func (x *Explainer) Explain(ctx context.Context, req *rlsv3.RateLimitRequest) *Report {
	x.mu.Lock()
	defer x.mu.Unlock()
	o := x.options
	now := o.Now()
	r := &Report{
		Domain: req.Domain, Time: now.UTC(), Descriptors: []Descriptor{},
		Offline: o.Layer == nil,
	}
	if r.Offline {
		o.Layer = backend.Counters{Limiter: local.New(local.Options{})} // empty counters
	}
	config := o.Limits.Load()
	var fixedStore descriptors.Store // a reload does not change fixedStore between the answer and its explanation
	if config != nil {
		fixedStore.Set(config)
	}
	p := &peeker{options: &o}
	w := &reporter{options: &o, now: now, report: r, peeker: p, config: config}
	s := service.New(service.Options{
		Limits: &fixedStore, Limiter: p, Observers: []service.Observer{w}, Now: func() time.Time { return now },
		ShadowMode: o.ShadowMode, QuotaMode: o.QuotaMode, AllOrNone: o.AllOrNone,
	})
	_, _ = s.ShouldRateLimit(ctx, req) // the reporter gets the response
	if c := o.Candidate; c != nil && c.options.Limits.Load() != nil {
		r.Candidate = c.Explain(ctx, req)
	}
	return r
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

func (w *reporter) Answered(_ context.Context, c *service.Call) {
	r := w.report
	if c.Err != nil {
		r.Error = status.Convert(c.Err).Message()
	} else {
		r.Code, r.GlobalShadowMode = c.Response.OverallCode.String(), c.GlobalShadow
	}
	if w.config == nil {
		return
	}
	if w.domain = w.config.Domain(c.Request.Domain); w.domain == nil {
		r.UnknownDomain = w.unknownDomain(c.Request)
	} else {
		r.Place = placeText(w.domain.Source().File, w.domain.Source().Line)
		if s := w.domain.Source().OffSwitch; s != nil {
			r.Switches = append(r.Switches, "all limits of "+cmp.Or(fields.Printable(s.Target), "all domains")+" are switched off"+s.String())
		}
	}
	if s := w.config.ShadowMode(); s != nil {
		r.Switches = append(r.Switches, fmt.Sprintf("SHADOW_MODE is switched to %t%s", s.IsOn, s.Notes))
	}
	for i := range c.Request.Descriptors {
		r.Descriptors = append(r.Descriptors, w.explainDescriptor(c, i))
	}
}

func (w *reporter) unknownDomain(req *rlsv3.RateLimitRequest) *UnknownDomain {
	const maxNames = 20
	names := []string{}
	unknown := &UnknownDomain{}
	var budget descriptors.Budget
	for _, d := range w.config.Domains() {
		names = append(names, d.Name)
		hasRules := !slices.ContainsFunc(req.Descriptors, func(r *ratelimitv3.RateLimitDescriptor) bool {
			return r.GetLimit() != nil || d.MatchWithBudget(&budget, r.GetEntries()) == nil
		})
		if hasRules && len(unknown.WithRule) < maxNames {
			unknown.WithRule = append(unknown.WithRule, d.Name)
		}
	}
	unknown.Nearest, unknown.Count, unknown.Domains = fields.Nearest(req.Domain, names), len(names), names[:min(len(names), maxNames)]
	return unknown
}

func (w *reporter) explainDescriptor(c *service.Call, i int) Descriptor {
	request := c.Request.Descriptors[i]
	d := Descriptor{Descriptor: entrytext.Format(request.GetEntries()), Hits: c.RequestedHits(i), Levels: []Level{}, Limits: []Limit{}}
	var rule *descriptors.Rule
	if i < len(c.Rules) {
		rule = c.Rules[i]
	}
	var fileDescriptor *limitsfile.Descriptor
	var trace descriptors.Trace
	if w.domain != nil && request.GetLimit() == nil {
		trace = w.domain.TraceWithBudget(&w.budget, request.GetEntries())
		for j := range trace.Steps {
			d.Levels = append(d.Levels, explainLevel(&trace.Steps[j]))
		}
		if n := len(trace.Trail); n > 0 && n == len(request.GetEntries()) {
			fileDescriptor = trace.Trail[n-1]
		}
	}
	if rule != nil {
		d.Rule, d.ShadowMode, d.QuotaMode, d.MaxHits = rule.Path, rule.ShadowMode, rule.QuotaMode || w.options.QuotaMode, rule.MaxHits
	}
	d.Enforcement = newEnforcement(c, i, rule)
	if fileDescriptor != nil {
		d.Place = placeText(fileDescriptor.File, fileDescriptor.Line)
		if denial := fileDescriptor.Denial; denial != nil {
			d.Denial = &Denial{Body: string(denial.Body)}
			for _, h := range denial.Headers {
				d.Denial.Headers = append(d.Denial.Headers, h.GetKey()+": "+h.GetValue())
			}
		}
		if fileDescriptor.CreationNotes != nil {
			d.Created = new(newOverride(limitsfile.AppliedOverride{Notes: *fileDescriptor.CreationNotes}))
		}
		for _, applied := range fileDescriptor.Overrides {
			d.Overrides = append(d.Overrides, newOverride(applied))
		}
	}
	d.Limits = append(d.Limits, w.explainLimits(c, i, rule, fileDescriptor)...)
	if c.Response != nil {
		answer := c.Response.Statuses[i]
		d.Code, d.Remaining = answer.Code.String(), answer.LimitRemaining
		d.DecidingLimit = w.decidingLimit(c, i, rule)
	}
	d.Summary = w.summary(c, request, &d, rule, fileDescriptor, &trace)
	return d
}

// newEnforcement describes the field enforce of rule for descriptor i. It returns nil if the rule can deny all keys.
func newEnforcement(c *service.Call, i int, rule *descriptors.Rule) *Enforcement {
	if rule == nil || rule.EnforcedPercent() == 100 {
		return nil
	}
	e := &Enforcement{Percent: rule.EnforcedPercent(), IncludesKey: true}
	for j := range c.DecisionCount() {
		if decision := c.Decision(j); decision.Descriptor == i {
			e.IncludesKey = !decision.Shadow
		}
	}
	return e
}

func newOverride(applied limitsfile.AppliedOverride) Override {
	return Override{
		Target: applied.Target, Off: applied.IsSwitch, Author: applied.Author, Reason: applied.Reason, BaseLimits: applied.BaseLimits,
		SetAt: utcOrNil(applied.SetAt), ExpiresAt: utcOrNil(applied.ExpiresAt),
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
func (w *reporter) explainLimits(c *service.Call, i int, rule *descriptors.Rule, fileDescriptor *limitsfile.Descriptor) []Limit {
	var limitsInForce []*descriptors.RateLimit // the limits of rule that are not explained yet
	if rule != nil {
		limitsInForce = rule.Limits
	}
	var limits []Limit
	if fileDescriptor == nil {
		for _, requestLimit := range limitsInForce {
			l := w.explainLimit(c, i, requestLimit)
			if rule != w.domain.UntestedRule() {
				l.FromRequest = true
				if file, line := w.domain.Source().DefaultsPlace(); file != "" {
					l.DefaultsPlace, l.FromDefaults = placeText(file, line), w.domain.Source().RequestLimitDefaults()
				}
			}
			limits = append(limits, l)
		}
		return limits
	}
	for _, fileLimit := range fileDescriptor.Limits {
		var l Limit
		if fileLimit.Enabled && len(limitsInForce) > 0 {
			l = w.explainLimit(c, i, limitsInForce[0])
			limitsInForce = limitsInForce[1:]
		} else {
			l = effectiveValues(fileLimit.Limit)
			l.Name, l.State = fileLimit.Name, Off
			if fileLimit.Enabled && isRejected(c) {
				l.State = Rejected
			}
		}
		if fileLimit.Line > 0 {
			l.Place = placeText(fileDescriptor.File, fileLimit.Line)
		}
		l.FromOverride, l.FromDefaults = fileLimit.OverrideFields(), fileLimit.DefaultFields()
		if len(l.FromDefaults) > 0 {
			l.DefaultsPlace = placeText(w.domain.Source().DefaultsPlace())
		}
		limits = append(limits, l)
	}
	return limits
}

// effectiveValues returns a Limit with the values of l. If l is nil, the limit is unlimited.
func effectiveValues(l *limit.Limit) Limit {
	if l == nil {
		return Limit{Limit: "unlimited"}
	}
	values := Limit{
		Limit: l.String(), RequestsPerUnit: l.Requests, Unit: l.Unit.String(), UnitMultiplier: l.Multiplier, Timezone: l.Timezone,
		Algorithm: l.Algorithm.String(), Burst: l.Burst, Scope: l.Scope.String(), ChargeDenied: l.ChargeDenied,
		OnBackendFailure: l.OnBackendFailure.String(), FallbackRatio: l.FallbackRatio,
		Lease: l.Lease, LeaseWaste: l.LeaseWaste,
	}
	if l.Hold != 0 {
		values.Hold = limit.DurationText(l.Hold)
	}
	return values
}

// explainLimit explains l, a limit in force that descriptor i meets.
func (w *reporter) explainLimit(c *service.Call, i int, l *descriptors.RateLimit) Limit {
	limitReport := effectiveValues(l.Limit)
	limitReport.Name = l.Name
	for j := range c.DecisionCount() {
		if d := c.Decision(j); d.Descriptor == i && d.Limit == l {
			limitReport.State = Counted
			w.setCounter(&limitReport, &d, &w.peeker.peeks[j])
			return limitReport
		}
	}
	switch {
	case l.Unlimited:
		limitReport.State = Unlimited
	case isRejected(c):
		limitReport.State = Rejected
	default:
		limitReport.State, limitReport.ReplacedBy = Replaced, replacingLimit(c, l.Name)
	}
	return limitReport
}

// isRejected reports whether the service has rejected c, because the rule allows no refund, for example.
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

func (w *reporter) setCounter(l *Limit, d *service.Decision, p *peek) {
	countedLimit := d.Limit.Limit
	l.Counter = &Counter{Name: string(d.Key), Tag: countedLimit.Tag()}
	if w.options.RedisKey != nil && countedLimit.Scope == limit.Global {
		l.Counter.Server, l.Counter.Key = w.options.RedisKey(d.Hit)
	}
	if w.options.HeldPermits != nil {
		l.Counter.Permits = w.options.HeldPermits(w.now, d.Hit)
	}
	switch r := p.Result; {
	case r.Err != nil, r.IsDegraded() && r.Share == nil:
		l.Counter.Unknown, l.Counter.Degraded = true, r.IsDegraded()
	default:
		l.Counter.Degraded = r.IsDegraded()
		shareOrLimit := cmp.Or(r.Share, countedLimit)
		l.Counter.Capacity, l.Counter.Remaining = shareOrLimit.Capacity(), r.Remaining
		l.Counter.Spent = shareOrLimit.Spent(r.Result)
		if countedLimit.Algorithm.HasHolds() {
			l.Counter.FirstExpiryAt = w.timeAfter(r.ResetAfter)
			break
		}
		l.Counter.ResetAt = w.timeAfter(r.ResetAfter)
		if countedLimit.Algorithm.ResetsAtWindowEnd() && r.ResetAfter > 0 {
			l.Counter.WindowStart = new(w.timeAt(countedLimit.WindowStart(w.now.UnixMicro()+r.ResetAfter) - w.now.UnixMicro()))
		}
	}
	if w.options.Shares != nil {
		l.Shares = w.options.Shares(l.Counter.Name)
	}
	r := d.Result
	answer := &Answer{Allowed: r.Allowed, Remaining: max(r.Remaining, 0), Source: r.Source.String(), Reason: r.Reason.String(), Mode: r.Mode.String()}
	l.NextHit = answer
	if r.Err != nil {
		*answer = Answer{Error: r.Err.Error()}
		return
	}
	answer.Never = !r.Allowed && r.RetryAfter == limit.Never
	if !r.Allowed && r.RetryAfter > 0 && p.isRetryExact {
		answer.RetryAt = w.timeAfter(r.RetryAfter)
	}
	switch r.Source {
	case backend.SourceLocal:
		answer.By = "this replica"
	case backend.SourceRedis:
		answer.By = "Redis"
	case backend.SourceFallback:
		answer.By = "the fallback in this replica"
		if w.options.FailingSince != nil {
			answer.Since = utcOrNil(w.options.FailingSince(d.Hit))
		}
	case backend.SourceDenyCache:
		answer.By, answer.Since, answer.Until = "the deny cache of this replica", utcOrNil(p.Denial.Since), answer.RetryAt
	default:
		if r.Source.IsBackend() {
			answer.By = r.Source.String()
		}
	}
}

// timeAfter returns now plus micros, rounded to a millisecond, or nil if micros is 0.
func (w *reporter) timeAfter(micros int64) *time.Time {
	if micros == 0 {
		return nil
	}
	return new(w.timeAt(micros))
}

func (w *reporter) timeAt(micros int64) time.Time {
	return w.now.Add(time.Duration(micros) * time.Microsecond).UTC().Round(time.Millisecond)
}

// decidingLimit returns the index of the limit that the status of descriptor i describes, or nil.
func (w *reporter) decidingLimit(c *service.Call, i int, rule *descriptors.Rule) *int {
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

func explainLevel(s *descriptors.Step) Level {
	l := Level{Entry: descriptors.EntryLabel(s.Entry), Compared: s.SiblingCount, OtherValues: s.OtherValueCount}
	for i := range s.Candidates {
		c := &s.Candidates[i]
		candidate := Candidate{
			Descriptor: c.Label(), Place: placeText(c.File, c.Line), Match: c.Kind.String(), Difference: c.Difference.String(),
			Reason: candidateReason(s, c),
		}
		if c == s.Winner {
			l.Winner = &candidate
		} else {
			l.Others = append(l.Others, candidate)
		}
	}
	return l
}

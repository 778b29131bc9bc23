package metrics

import (
	"context"
	"iter"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
)

// removedRuleTTL is the time that the counts of a removed rule stay, so that Prometheus reads the last counts, and the
// counts continue if the rule comes back.
const removedRuleTTL = 10 * time.Minute

// idleValueTTL is the time after which a value of requests without a hit loses its series to another value.
const idleValueTTL = time.Hour

// RuleOptions configure the metrics of rules.
type RuleOptions struct {
	NearLimitRatio float32 // 0.8: hits are near a limit of 10 when the count is above 8
	MaxSeries      int     // bounds, for each limit, the values of requests with their own series; other values share one series
	NoRuleLabel    bool    // leave out the label rule for Prometheus, and add up the series that differ only in this label
	Log            *slog.Logger
}

// RuleCounts are the hits on one limit since the process started. A reload keeps the counts if the rule keeps its path.
type RuleCounts struct {
	Domain string
	Rule   string // the path of the rule
	Limit  string // the name of the limit, or its window and algorithm; empty if the rule has a single limit
	HitSums
}

// rules is a service.Observer that counts the hits of all rules.
type rules struct {
	hitClassifier
	options        RuleOptions
	unknownDomains *domainCounter // counts descriptors of domains without limits
	unmatched      *domainCounter // counts descriptors that no rule of their domain limits
	limits         limitTable
}

// limitName identifies a limit. rule is the path of the rule.
type limitName struct {
	rule, limit string
	flags       string // the settings of the rule that change its series, from Rule.MetricFlags
}

// limitSeries has the series of one limit. RateLimit.Metrics points to the limitSeries, so a call needs no lookup. The
// counts come first, so that the counts of two limits are never in one cache line, which would slow down calls.
type limitSeries struct {
	onlySeries  series         // has no meaning if valueSeries is not nil
	valueSeries *varyingSeries // nil if all requests count in onlySeries

	domain string
	name   limitName

	// The mutex of limitTable guards the fields below.

	next   *limitSeries // the next limit of the same rule, or nil
	config uint32       // the number of the last configuration that had the limit

	removedAt int64 // when the limit was removed, as Unix time in nanoseconds; 0 if the limit is in force
}

// varyingSeries has the series of a limit whose metric key contains values of requests.
type varyingSeries struct {
	values      boundedMap[series]     // the key is the metric key
	otherSeries atomic.Pointer[series] // counts the hits of values for which there is no room; nil before such a hit

	// The mutex of limitTable guards the fields below.

	checkedAt   time.Time // when deleteIdleValues last ran, or zero
	deletedSums HitSums   // the counts of the series that deleteIdleValues has deleted
}

// RuleObserver registers the metrics of rules and returns their Observer.
func (m *Metrics) RuleObserver(o RuleOptions) service.Observer {
	m.rules.options = o
	m.rules.hitClassifier = hitClassifier{nearRatio: o.NearLimitRatio}
	m.rules.unknownDomains = m.newDomainCounter("ratelimit_service_rate_limit_domain_not_found", "Descriptors of requests whose domain has no limits.", o.MaxSeries)
	m.rules.unmatched = m.newDomainCounter("rls_unmatched_descriptors_total", "Descriptors that no rule of their domain limits.", o.MaxSeries)
	return m.rules
}

// OverHits returns how many of the hits of d are beyond the limit. d is a denied decision.
func (m *Metrics) OverHits(d service.Decision) int64 {
	over, _ := m.rules.overHits(&d)
	return over
}

// Rules returns the counts of the limits that have had a hit. The limits of a rule follow each other.
func (m *Metrics) Rules() iter.Seq[RuleCounts] {
	return func(yield func(RuleCounts) bool) {
		limits := m.rules.limits.all(time.Now())
		for rules := 1; len(limits) > 0; rules++ {
			if rules%rulesPerStep == 0 {
				runtime.Gosched() // lets calls run, because there can be many rules
			}
			end := slices.IndexFunc(limits, func(l *limitSeries) bool { return l.name.rule != limits[0].name.rule })
			if end < 0 {
				end = len(limits)
			}
			for _, c := range m.rules.countsOf(limits[:end]) {
				if !yield(c) {
					return
				}
			}
			limits = limits[end:]
		}
	}
}

// countsOf returns the counts of the limits of one rule. It adds up limits that differ only in flags.
func (r *rules) countsOf(limits []*limitSeries) []RuleCounts {
	var counts []RuleCounts
	for _, l := range limits {
		i := slices.IndexFunc(counts, func(c RuleCounts) bool { return c.Limit == l.name.limit })
		if i < 0 {
			i = len(counts)
			counts = append(counts, RuleCounts{Domain: l.domain, Rule: l.name.rule, Limit: l.name.limit})
		}
		counts[i].add(r.sumsOf(l))
	}
	return counts
}

// KeyCounts are the hits that envoyproxy/ratelimit counts under one metric key.
type KeyCounts struct {
	Key string // the domain and the keys of the rule, joined by dots
	ID  string // differs between counts with the same Key
	HitSums
}

// KeyCounts returns the hits of all rules by metric key.
func (m *Metrics) KeyCounts() iter.Seq[KeyCounts] {
	return func(yield func(KeyCounts) bool) {
		for _, l := range m.rules.limits.all(time.Now()) {
			for s := range l.series() {
				c := KeyCounts{Key: s.key, ID: s.path + l.name.flags, HitSums: s.sums()}
				if l.valueSeries != nil && s == l.valueSeries.otherSeries.Load() {
					c.ID += " and further values" // a value of a request can be "other" as well
				}
				if !yield(c) {
					return
				}
			}
		}
	}
}

// PrepareRules lets the limits of c find their counts. The caller puts c in force afterwards.
func (m *Metrics) PrepareRules(c *descriptors.Config) { m.rules.prepare(c, time.Now()) }

func (r *rules) Answered(_ context.Context, c *service.Call) {
	if !c.HasDomain && len(c.Rules) > 0 {
		r.unknownDomains.count(c.Request.GetDomain(), len(c.Rules))
		return
	}
	for i, rule := range c.Rules {
		if rule == nil && c.IsUnmatched(i) {
			r.unmatched.count(c.Request.GetDomain(), 1)
		}
	}
	for i := range c.DecisionCount() {
		d := c.Decision(i)
		if d.N == 0 { // a peek
			continue
		}
		l, _ := d.Limit.Metrics.Load().(*limitSeries)
		if l == nil {
			l = r.addLimit(c.Request, &d)
		}
		s := &l.onlySeries
		if l.valueSeries != nil {
			s = r.seriesOf(l, c.Request.GetDomain(), d.Rule, c.Request.GetDescriptors()[d.Descriptor].GetEntries())
		}
		r.count(&s.hitCounts, &d)
	}
}

// addLimit returns the series of the limit of d, which had no hit before.
func (r *rules) addLimit(req *rlsv3.RateLimitRequest, d *service.Decision) *limitSeries {
	name := limitNameOf(d.Rule, d.Limit)
	l := r.limits.findOrAdd(name, func() *limitSeries {
		l := &limitSeries{domain: strings.Clone(req.GetDomain()), name: name} // the text of the request can be freed
		if d.Rule.MetricKeyVaries() {
			l.valueSeries = &varyingSeries{}
			l.valueSeries.values.maxTexts = r.options.MaxSeries
		} else {
			l.onlySeries.setNames(l, d.Rule, req.GetDescriptors()[d.Descriptor].GetEntries())
		}
		return l
	})
	d.Limit.Metrics.Store(l)
	return l
}

// seriesOf returns the series of l that counts a request with these entries. The entries match rule.
func (r *rules) seriesOf(l *limitSeries, domain string, rule *descriptors.Rule, entries []*ratelimitv3.RateLimitDescriptor_Entry) *series {
	var memory [maxMetricKey]byte
	if key := rule.AppendMetricKey(memory[:0], domain, entries); len(key) <= maxMetricKey {
		if s := l.valueSeries.values.findOrCreate(key, func() *series { return newSeries(l, rule, entries) }); s != nil {
			return s
		}
	}
	if other := l.valueSeries.otherSeries.Load(); other != nil {
		return other
	}
	if l.valueSeries.otherSeries.CompareAndSwap(nil, newSeries(l, rule, rule.ReplaceVaryingTexts(entries, otherValue))) {
		r.options.Log.Warn("metrics limited", "rule", l.name.rule, "setting", "METRICS_MAX_SERIES", "max_series", r.options.MaxSeries,
			"reason", "further values of requests count as "+otherValue)
	}
	return l.valueSeries.otherSeries.Load()
}

// sumsOf returns the sums of all series of l, including the deleted series.
func (r *rules) sumsOf(l *limitSeries) HitSums {
	r.limits.mu.Lock()
	defer r.limits.mu.Unlock()
	var sums HitSums
	if l.valueSeries != nil {
		sums = l.valueSeries.deletedSums
	}
	for s := range l.series() {
		sums.add(s.sums())
	}
	return sums
}

func (l *limitSeries) series() iter.Seq[*series] {
	return func(yield func(*series) bool) {
		if l.valueSeries == nil {
			yield(&l.onlySeries)
			return
		}
		for _, s := range l.valueSeries.values.all() {
			if !yield(s) {
				return
			}
		}
		if other := l.valueSeries.otherSeries.Load(); other != nil {
			yield(other)
		}
	}
}

// prepare attaches the counts to the limits of c, and marks all other limits as removed. Calls go on meanwhile.
func (r *rules) prepare(c *descriptors.Config, now time.Time) {
	r.limits.beginConfig()
	attachSeries := func(name limitName, a *descriptors.Attachment) {
		if l := r.limits.keep(name); l != nil {
			a.Store(l)
		}
	}
	c.EachRule(func(rule *descriptors.Rule) {
		for _, l := range rule.Limits {
			attachSeries(limitNameOf(rule, l), l.Metrics)
		}
	})
	for _, d := range c.Domains() {
		attachSeries(limitName{rule: d.RequestPath()}, d.RequestMetrics())
		untestedRule := d.UntestedRule()
		attachSeries(limitNameOf(untestedRule, untestedRule.Limits[0]), untestedRule.Limits[0].Metrics)
	}
	r.limits.markRemoved(now)
}

// deleteIdleValues deletes the series without a hit since the last check.
func (v *varyingSeries) deleteIdleValues(now time.Time) {
	v.checkedAt = now
	v.values.deleteFunc(func(s *series) bool {
		sums := s.sums()
		isIdle := s.checkedTotal == sums.Total
		if s.checkedTotal = sums.Total; isIdle {
			v.deletedSums.add(sums)
		}
		return isIdle
	})
}

// nameOf returns the name of limit l of rule.
func limitNameOf(rule *descriptors.Rule, l *descriptors.RateLimit) limitName {
	name := limitName{rule: rule.Path, flags: rule.MetricFlags()}
	if len(rule.Limits) == 1 {
		return name
	}
	sameNameCount := 0
	for _, other := range rule.Limits {
		if other.Name == l.Name {
			sameNameCount++
		}
	}
	if name.limit = l.Name; l.Name == "" || sameNameCount > 1 {
		name.limit = windowText(l.Limit)
	}
	return name
}

// kindOf returns the window, algorithm and scope of l, such as "per hour, token_bucket". Two limits of a rule differ in
// at least one of them.
func windowText(l *limit.Limit) string {
	kind := l.PerWindow()
	if l.Algorithm != limit.DefaultAlgorithm {
		kind += ", " + l.Algorithm.String()
	}
	if l.Scope == limit.Instance {
		kind += ", per instance"
	}
	return kind
}

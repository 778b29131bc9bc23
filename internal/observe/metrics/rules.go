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
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
)

// removedRuleTTL is the time for which the counts of a removed rule stay. Prometheus then reads the last counts, and the
// counts continue if the rule comes back.
const removedRuleTTL = 10 * time.Minute

// If a value of requests has no hit for idleValueTTL, its series is deleted, so that another value can have a series.
const idleValueTTL = time.Hour

// RuleOptions configure the metrics of rules.
type RuleOptions struct {
	NearLimitRatio float32 // 0.8: hits are near a limit of 10 when the count is above 8
	MaxSeries      int     // bounds, for each limit, the values of requests with their own series; other values share one series
	NoRuleLabel    bool    // the metrics have no label rule, and series that differ only in this label are added up
	Log            *slog.Logger
}

// RuleCounts are the hits on one limit since the process started. A reload keeps the counts if the rule keeps its path.
type RuleCounts struct {
	Rule  string // the path of the rule
	Limit string // the name of the limit, or its window and algorithm; empty if the rule has a single limit
	HitSums
}

type rules struct {
	hitClassifier
	options              RuleOptions
	unknownDomains       *domainCounter // counts descriptors of domains without limits
	unmatchedDescriptors *domainCounter // counts descriptors that no rule of their domain limits
	limits               limitTable
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

	config uint32 // the number of the last configuration that had the limit

	removedAt int64 // the time at which the limit was removed, as Unix time in nanoseconds; 0 if the limit is in force
}

// varyingSeries has the series of a limit whose metric key contains values of requests.
type varyingSeries struct {
	values      boundedMap[series]     // the key is the metric key
	otherSeries atomic.Pointer[series] // counts the hits of values that have no series of their own; nil before the first such hit

	// The mutex of limitTable guards the fields below.

	checkedAt   time.Time // the time of the last call of deleteIdleValues; zero before the first call
	deletedSums HitSums   // the counts of the series that deleteIdleValues has deleted
}

// RuleObserver registers the metrics of rules and returns their Observer.
func (m *Metrics) RuleObserver(options RuleOptions) service.Observer {
	m.rules.options = options
	m.rules.hitClassifier = hitClassifier{nearRatio: options.NearLimitRatio}
	m.rules.unknownDomains = m.newDomainCounter("ratelimit_service_rate_limit_domain_not_found", "Descriptors of requests whose domain has no limits.", options.MaxSeries)
	m.rules.unmatchedDescriptors = m.newDomainCounter("rls_unmatched_descriptors_total", "Descriptors that no rule of their domain limits.", options.MaxSeries)
	return m.rules
}

// OverHits returns how many of the hits of d are beyond the limit. d is a denied decision.
func (m *Metrics) OverHits(d service.Decision) int64 {
	overHits, _ := m.rules.overHits(&d)
	return overHits
}

// Rules returns the counts of the limits that have had a hit. The limits of a rule follow each other.
func (m *Metrics) Rules() iter.Seq[RuleCounts] {
	return func(yield func(RuleCounts) bool) {
		limits := m.rules.limits.allLimits(time.Now())
		for ruleCount := 1; len(limits) > 0; ruleCount++ {
			if ruleCount%rulesBeforePause == 0 {
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
			counts = append(counts, RuleCounts{Rule: l.name.rule, Limit: l.name.limit})
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
		for _, l := range m.rules.limits.allLimits(time.Now()) {
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

// PrepareRules lets the limits of config find their counts. The caller puts config in force afterwards.
func (m *Metrics) PrepareRules(config *descriptors.Config) { m.rules.prepare(config, time.Now()) }

func (r *rules) CallAnswered(_ context.Context, call *service.Call) {
	if !call.HasDomain && len(call.Rules) > 0 {
		r.unknownDomains.count(call.Request.GetDomain(), len(call.Rules))
		return
	}
	for i, rule := range call.Rules {
		if rule == nil && call.IsUnmatched(i) {
			r.unmatchedDescriptors.count(call.Request.GetDomain(), 1)
		}
	}
	for i := range call.DecisionCount() {
		decision := call.Decision(i)
		if decision.N == 0 { // a peek
			continue
		}
		limitSeries, _ := decision.Limit.Metrics.Load().(*limitSeries)
		if limitSeries == nil {
			limitSeries = r.addLimit(call.Request, &decision)
		}
		countedSeries := &limitSeries.onlySeries
		if limitSeries.valueSeries != nil {
			countedSeries = r.seriesOf(limitSeries, call.Request.GetDomain(), decision.Rule, call.Request.GetDescriptors()[decision.Descriptor].GetEntries())
		}
		r.count(&countedSeries.hitCounts, &decision)
	}
}

// addLimit returns the series of the limit of decision, which had no hit before.
func (r *rules) addLimit(req *rlsv3.RateLimitRequest, decision *service.Decision) *limitSeries {
	name := limitNameOf(decision.Rule, decision.Limit)
	limitSeries := r.limits.findOrAdd(name, func() *limitSeries {
		limitSeries := &limitSeries{domain: strings.Clone(req.GetDomain()), name: name} // the text of the request can be freed
		if decision.Rule.MetricKeyVaries() {
			limitSeries.valueSeries = &varyingSeries{}
			limitSeries.valueSeries.values.maxTexts = r.options.MaxSeries
		} else {
			limitSeries.onlySeries.setNames(limitSeries, decision.Rule, req.GetDescriptors()[decision.Descriptor].GetEntries())
		}
		return limitSeries
	})
	decision.Limit.Metrics.Store(limitSeries)
	return limitSeries
}

// seriesOf returns the series of a limit that counts a request with these entries. The entries match rule.
func (r *rules) seriesOf(limitSeries *limitSeries, domain string, rule *descriptors.Rule, entries []*ratelimitv3.RateLimitDescriptor_Entry) *series {
	var memory [maxMetricKey]byte
	if key := rule.AppendMetricKey(memory[:0], domain, entries); len(key) <= maxMetricKey {
		if s := limitSeries.valueSeries.values.findOrCreate(key, func() *series { return newSeries(limitSeries, rule, entries) }); s != nil {
			return s
		}
	}
	if otherSeries := limitSeries.valueSeries.otherSeries.Load(); otherSeries != nil {
		return otherSeries
	}
	if limitSeries.valueSeries.otherSeries.CompareAndSwap(nil, newSeries(limitSeries, rule, rule.ReplaceVaryingTexts(entries, otherValue))) {
		r.options.Log.Warn("metrics limited", "rule", limitSeries.name.rule, "setting", "METRICS_MAX_SERIES", "max_series", r.options.MaxSeries,
			"reason", "further values of requests count as "+otherValue)
	}
	return limitSeries.valueSeries.otherSeries.Load()
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
		for _, s := range l.valueSeries.values.allValues() {
			if !yield(s) {
				return
			}
		}
		if otherSeries := l.valueSeries.otherSeries.Load(); otherSeries != nil {
			yield(otherSeries)
		}
	}
}

// prepare attaches the counts to the limits of config, and marks all other limits as removed. Calls go on meanwhile.
func (r *rules) prepare(config *descriptors.Config, now time.Time) {
	r.limits.beginConfig()
	attachSeries := func(name limitName, a *descriptors.Attachment) {
		if l := r.limits.keep(name); l != nil {
			a.Store(l)
		}
	}
	config.EachRule(func(rule *descriptors.Rule) {
		for _, l := range rule.Limits {
			attachSeries(limitNameOf(rule, l), l.Metrics)
		}
	})
	for _, d := range config.Domains() {
		attachSeries(limitName{rule: d.RequestPath()}, &d.RequestMetrics)
		untestedRule := d.UntestedRule
		attachSeries(limitNameOf(untestedRule, untestedRule.Limits[0]), untestedRule.Limits[0].Metrics)
	}
	r.limits.markRemoved(now)
}

func (v *varyingSeries) deleteIdleValues(now time.Time) {
	v.checkedAt = now
	v.values.deleteFunc(func(s *series) bool {
		sums := s.sums()
		isIdle := s.totalAtLastCheck == sums.Total
		if s.totalAtLastCheck = sums.Total; isIdle {
			v.deletedSums.add(sums)
		}
		return isIdle
	})
}

func limitNameOf(rule *descriptors.Rule, limit *descriptors.RateLimit) limitName {
	name := limitName{rule: rule.Path, flags: rule.MetricFlags()}
	if len(rule.Limits) == 1 {
		return name
	}
	sameNameCount := 0
	for _, otherLimit := range rule.Limits {
		if otherLimit.Name == limit.Name {
			sameNameCount++
		}
	}
	if name.limit = limit.Name; limit.Name == "" || sameNameCount > 1 {
		name.limit = windowText(limit.Limit)
	}
	return name
}

// windowText returns the window, the algorithm and the scope of l, such as "per hour, token_bucket". Two limits of a rule
// never have the same windowText.
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

type domainCounter struct {
	counters *prometheus.CounterVec
	domains  boundedMap[prometheus.Counter]
}

// newDomainCounter registers a counter. The first maxDomains domains have a series. Further domains count as "other".
func (m *Metrics) newDomainCounter(name, help string, maxDomains int) *domainCounter {
	return &domainCounter{
		counters: m.newCounters(name, help, "domain"),
		domains:  boundedMap[prometheus.Counter]{maxTexts: maxDomains},
	}
}

func (d *domainCounter) count(domain string, descriptors int) {
	var counter *prometheus.Counter
	if len(domain) <= maxMetricKey {
		counter = d.domains.findOrCreate([]byte(domain), func() *prometheus.Counter { return new(d.counters.WithLabelValues(validText(domain))) })
	}
	if counter == nil {
		counter = new(d.counters.WithLabelValues(otherValue))
	}
	(*counter).Add(float64(descriptors))
}

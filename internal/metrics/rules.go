package metrics

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
)

// removedRuleTTL is how long the metrics keep the counts of a rule that is no longer in
// force. In this time Prometheus can read the last counts. A rule that comes back in this
// time keeps its counts.
const removedRuleTTL = 10 * time.Minute

// idleValueTTL is how long a value of requests keeps its series without a hit, if another
// value could use the series.
const idleValueTTL = time.Hour

// RuleOptions configure the metrics of rules.
type RuleOptions struct {
	// NearLimitRatio × the limit is the count at which hits begin to be near the limit.
	NearLimitRatio float32

	// FallbackRatio is the share of a limit that the fallback grants if the limit has no
	// ratio.
	FallbackRatio float64

	// AllOrNone reports that denied hits are not charged, except hits of shadow mode.
	AllOrNone bool

	// MaxSeries is the maximum number of values of requests that a limit has metrics for.
	// Hits with further values count for the value "other".
	MaxSeries int

	Log *slog.Logger
}

// RuleCounts are the hits on one limit since the process has started. They survive reloads
// as long as the rule has the same path.
type RuleCounts struct {
	Domain string
	Rule   string // the path of the rule

	// Limit is the name of the limit, or its window and algorithm. It is empty if the rule has
	// a single limit.
	Limit string

	HitSums
}

// rules counts the hits of all rules.
type rules struct {
	hitClassifier
	options        RuleOptions
	unknownDomains *unknownDomains

	mu     sync.Mutex
	limits map[limitName]*limitSeries
}

// limitName names a limit of a rule.
type limitName struct {
	rule, limit string
	flags       string // see descriptors.Rule.MetricFlags
}

// limitSeries has the series of one limit. RateLimit.Metrics of the limit has a pointer to its
// limitSeries, so a call needs no lookup.
type limitSeries struct {
	domain string
	name   limitName

	single *series // nil if the series vary with the values of requests

	varying *varyingSeries // nil if single is set

	// The mutex of rules guards the field below.

	// removedAt is the time at which the limit was removed, or zero if it is in force.
	removedAt time.Time
}

// varyingSeries has the series of a limit whose metric key has values of requests.
type varyingSeries struct {
	// values has a series for each metric key. If the key of a hit has no place in values, the
	// hit counts for other. The first such hit makes other.
	values boundedMap[series]
	other  atomic.Pointer[series]

	// The mutex of rules guards the fields below.

	// checkedAt is the time of the last check for idle values, or zero. deletedSums are the
	// sums of the series that checks have deleted.
	checkedAt   time.Time
	deletedSums HitSums
}

func newRules() *rules { return &rules{limits: map[limitName]*limitSeries{}} }

// RuleObserver registers the metrics of rules and returns their Observer.
func (m *Metrics) RuleObserver(o RuleOptions) service.Observer {
	m.rules.options = o
	m.rules.hitClassifier = hitClassifier{nearRatio: o.NearLimitRatio, fallbackRatio: o.FallbackRatio, allOrNone: o.AllOrNone}
	m.rules.unknownDomains = m.newUnknownDomains(o.MaxSeries)
	m.registry.MustRegister(newRuleCollector(m.rules))
	return m.rules
}

// Rules returns the counts of the limits that have had a hit, by domain and rule.
func (m *Metrics) Rules() []RuleCounts {
	var all []RuleCounts
	for _, l := range m.rules.sortedLimits(time.Now()) {
		c := RuleCounts{Domain: l.domain, Rule: l.name.rule, Limit: l.name.limit, HitSums: m.rules.sumsOf(l)}
		if last := len(all) - 1; last >= 0 && all[last].Rule == c.Rule && all[last].Limit == c.Limit {
			all[last].HitSums.addSums(c.HitSums) // the flags of the rule have changed
			continue
		}
		all = append(all, c)
	}
	return all
}

// KeyCounts are the hits that envoyproxy/ratelimit counts under one metric key.
type KeyCounts struct {
	Key string // the domain and the keys of the rule, joined by dots
	ID  string // differs between counts with the same Key
	HitSums
}

// KeyCounts returns the hits of all rules by metric key.
func (m *Metrics) KeyCounts() []KeyCounts {
	var all []KeyCounts
	for _, l := range m.rules.sortedLimits(time.Now()) {
		l.eachSeries(func(s *series) {
			c := KeyCounts{Key: s.key, ID: s.labels.rule + l.name.flags}
			c.add(&s.hitCounts)
			all = append(all, c)
		})
	}
	return all
}

// PrepareRules connects the limits of c with the counts of the limits in force. It must be
// called before c comes into force.
func (m *Metrics) PrepareRules(c *descriptors.Config) { m.rules.prepare(c, time.Now()) }

// Answered implements service.Observer.
func (r *rules) Answered(_ context.Context, c *service.Call) {
	if !c.DomainFound && len(c.Rules) > 0 {
		r.unknownDomains.count(c.Request.GetDomain(), len(c.Rules))
		return
	}
	for i := range c.Decisions() {
		d := c.Decision(i)
		if d.N <= 0 { // a peek or a refund
			continue
		}
		l, _ := d.Limit.Metrics.Load().(*limitSeries)
		if l == nil {
			l = r.addLimit(c.Request, &d)
		}
		s := l.single
		if s == nil {
			s = r.seriesOf(l, c.Request.GetDomain(), d.Rule, c.Request.GetDescriptors()[d.Descriptor].GetEntries())
		}
		r.count(&s.hitCounts, d.Limit.Limit, d.N, d.Shadow, &d.Result)
	}
}

// addLimit returns the series of the limit of d, which had no hit before.
func (r *rules) addLimit(req *rlsv3.RateLimitRequest, d *service.Decision) *limitSeries {
	name := nameOf(d.Rule, d.Limit)
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limits[name]
	if l == nil {
		l = &limitSeries{domain: req.GetDomain(), name: name}
		if d.Rule.MetricKeyVaries() {
			l.varying = &varyingSeries{}
			l.varying.values.maxTexts = r.options.MaxSeries
		} else {
			l.single = newSeries(l, d.Rule, req.GetDescriptors()[d.Descriptor].GetEntries())
		}
		r.limits[name] = l
	}
	d.Limit.Metrics.Store(l)
	return l
}

// seriesOf returns the series of l for the entries of a request, which match rule.
func (r *rules) seriesOf(l *limitSeries, domain string, rule *descriptors.Rule, entries []*ratelimitv3.RateLimitDescriptor_Entry) *series {
	var memory [maxMetricKey]byte
	if key := rule.AppendMetricKey(memory[:0], domain, entries); len(key) <= maxMetricKey {
		if s := l.varying.values.find(key, func() *series { return newSeries(l, rule, entries) }); s != nil {
			return s
		}
	}
	if other := l.varying.other.Load(); other != nil {
		return other
	}
	if l.varying.other.CompareAndSwap(nil, newSeries(l, rule, rule.OtherEntries(entries, otherValue))) {
		r.options.Log.Warn("metrics limited", "rule", l.name.rule, "setting", "METRICS_MAX_SERIES", "max_series", r.options.MaxSeries,
			"reason", "further values of requests count as "+otherValue)
	}
	return l.varying.other.Load()
}

// sumsOf returns the sums of all series that l has or had.
func (r *rules) sumsOf(l *limitSeries) HitSums {
	r.mu.Lock()
	defer r.mu.Unlock()
	var sums HitSums
	if l.varying != nil {
		sums = l.varying.deletedSums
	}
	l.eachSeries(func(s *series) { sums.add(&s.hitCounts) })
	return sums
}

// eachSeries calls f with each series of l.
func (l *limitSeries) eachSeries(f func(*series)) {
	if l.single != nil {
		f(l.single)
		return
	}
	for _, s := range l.varying.values.values() {
		f(s)
	}
	if other := l.varying.other.Load(); other != nil {
		f(other)
	}
}

// prepare attaches the counts to the limits of c, and marks the counts of other limits as
// removed at now.
func (r *rules) prepare(c *descriptors.Config, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	inForce := map[*limitSeries]bool{}
	attach := func(name limitName, a *descriptors.Attachment) {
		if l := r.limits[name]; l != nil {
			a.Store(l)
			inForce[l] = true
		}
	}
	c.EachRule(func(rule *descriptors.Rule) {
		for _, l := range rule.Limits {
			attach(nameOf(rule, l), l.Metrics)
		}
	})
	for _, d := range c.Domains() {
		attach(limitName{rule: d.RequestPath()}, d.RequestMetrics())
	}
	for _, l := range r.limits {
		switch {
		case inForce[l]:
			l.removedAt = time.Time{}
		case l.removedAt.IsZero():
			l.removedAt = now
		}
	}
	r.deleteOld(now)
}

// deleteOld deletes the counts that were removed removedRuleTTL ago, and the series of idle
// values. The caller holds r.mu.
func (r *rules) deleteOld(now time.Time) {
	for name, l := range r.limits {
		if !l.removedAt.IsZero() && now.Sub(l.removedAt) >= removedRuleTTL {
			delete(r.limits, name)
		}
		if v := l.varying; v != nil && v.values.isFull.Load() && now.Sub(v.checkedAt) >= idleValueTTL {
			v.deleteIdleValues(now)
		}
	}
}

// deleteIdleValues deletes the series that have had no hit since the last check. The caller
// holds the mutex of rules.
func (v *varyingSeries) deleteIdleValues(now time.Time) {
	v.checkedAt = now
	v.values.deleteFunc(func(s *series) bool {
		var sums HitSums
		sums.add(&s.hitCounts)
		isIdle := s.checkedTotal == sums.Total
		if s.checkedTotal = sums.Total; isIdle {
			v.deletedSums.addSums(sums)
		}
		return isIdle
	})
}

// sortedLimits returns the counts of all limits, sorted by name.
func (r *rules) sortedLimits(now time.Time) []*limitSeries {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deleteOld(now)
	all := make([]*limitSeries, 0, len(r.limits))
	for _, l := range r.limits {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b *limitSeries) int {
		return cmp.Or(cmp.Compare(a.domain, b.domain), cmp.Compare(a.name.rule, b.name.rule), cmp.Compare(a.name.limit, b.name.limit), cmp.Compare(a.name.flags, b.name.flags))
	})
	return all
}

// nameOf returns the name of l, which is a limit of rule.
func nameOf(rule *descriptors.Rule, l *descriptors.RateLimit) limitName {
	name := limitName{rule: rule.Path, flags: rule.MetricFlags()}
	if len(rule.Limits) == 1 {
		return name
	}
	sameName := 0
	for _, other := range rule.Limits {
		if other.Name == l.Name {
			sameName++
		}
	}
	if name.limit = l.Name; l.Name == "" || sameName > 1 {
		name.limit = kindOf(l.Limit)
	}
	return name
}

// kindOf returns the window, algorithm and scope of l. Two limits of one rule have different
// kinds. A change of the number of requests keeps the kind.
func kindOf(l *limit.Limit) string {
	kind := l.PerWindow()
	if l.Algorithm != limit.DefaultAlgorithm {
		kind += ", " + l.Algorithm.String()
	}
	if l.Scope == limit.Instance {
		kind += ", per instance"
	}
	return kind
}

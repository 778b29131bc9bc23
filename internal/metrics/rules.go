package metrics

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
)

// removedRuleTTL is how long the metrics keep the counts of a rule that is no longer in
// force. Prometheus then has read the last counts, and a rule that comes back soon goes on.
const removedRuleTTL = 10 * time.Minute

// RuleOptions configure the metrics of rules.
type RuleOptions struct {
	// NearLimitRatio is the share of a limit from which hits are near the limit.
	NearLimitRatio float32

	// FallbackRatio is the share of a limit that the fallback grants if the limit has no
	// ratio.
	FallbackRatio float64

	// AllOrNone reports that denied hits are not charged, except hits of shadow mode.
	AllOrNone bool
}

// RuleCounts are the hits on one limit since the process has started. They survive reloads
// as long as the rule has the same path.
type RuleCounts struct {
	Domain string
	Rule   string // the path of the rule

	// Limit tells the limits of a rule apart: its name, or its window and algorithm. It is
	// empty if the rule has a single limit.
	Limit string

	hitSums
}

// rules counts the hits of all rules.
type rules struct {
	hitRules

	mu     sync.Mutex
	limits map[limitName]*limitCounts
}

// limitName names a limit of a rule.
type limitName struct{ rule, limit string }

// limitCounts are the counts of one limit. The Attachment of the limit has them, so a call
// needs no lookup.
type limitCounts struct {
	domain string
	name   limitName
	counts *hitCounts

	// removedAt is the time since when the limit is not in force, or zero. It is guarded by
	// the mutex of rules.
	removedAt time.Time
}

func newRules() *rules { return &rules{limits: map[limitName]*limitCounts{}} }

// RuleObserver returns the Observer that counts the hits of rules.
func (m *Metrics) RuleObserver(o RuleOptions) service.Observer {
	m.rules.hitRules = hitRules{nearRatio: o.NearLimitRatio, fallbackRatio: o.FallbackRatio, allOrNone: o.AllOrNone}
	return m.rules
}

// Rules returns the counts of the limits that have had a hit, by domain and rule.
func (m *Metrics) Rules() []RuleCounts {
	var all []RuleCounts
	for _, l := range m.rules.all(time.Now()) {
		c := RuleCounts{Domain: l.domain, Rule: l.name.rule, Limit: l.name.limit}
		c.add(l.counts)
		all = append(all, c)
	}
	return all
}

// PrepareRules connects the limits of c with the counts of the limits in force. It must be
// called before c comes into force.
func (m *Metrics) PrepareRules(c *descriptors.Config) { m.rules.prepare(c, time.Now()) }

// Answered implements service.Observer.
func (r *rules) Answered(_ context.Context, c *service.Call) {
	for i := range c.Decisions() {
		d := c.Decision(i)
		if d.N <= 0 {
			continue
		}
		l, _ := d.Limit.Metrics.Load().(*limitCounts)
		if l == nil {
			l = r.addLimit(c.Request.GetDomain(), d.Rule, d.Limit)
		}
		r.count(l.counts, d.Limit.Limit, d.N, d.Rule.ShadowMode, &d.Result)
	}
}

// addLimit returns the counts of l, which is a limit of rule and had no hit before.
func (r *rules) addLimit(domain string, rule *descriptors.Rule, l *descriptors.RateLimit) *limitCounts {
	name := nameOf(rule, l)
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := r.limits[name]
	if counts == nil {
		counts = &limitCounts{domain: domain, name: name, counts: new(hitCounts)}
		r.limits[name] = counts
	}
	l.Metrics.Store(counts)
	return counts
}

// prepare attaches the counts to the limits of c, and marks the counts of other limits as
// removed at now.
func (r *rules) prepare(c *descriptors.Config, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	inForce := map[*limitCounts]bool{}
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
	r.deleteRemoved(now)
}

// deleteRemoved deletes the counts that were removed removedRuleTTL ago. The caller holds
// r.mu.
func (r *rules) deleteRemoved(now time.Time) {
	for name, l := range r.limits {
		if !l.removedAt.IsZero() && now.Sub(l.removedAt) >= removedRuleTTL {
			delete(r.limits, name)
		}
	}
}

// all returns the counts of all limits, sorted by name.
func (r *rules) all(now time.Time) []*limitCounts {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deleteRemoved(now)
	all := make([]*limitCounts, 0, len(r.limits))
	for _, l := range r.limits {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b *limitCounts) int {
		return cmp.Or(cmp.Compare(a.domain, b.domain), cmp.Compare(a.name.rule, b.name.rule), cmp.Compare(a.name.limit, b.name.limit))
	})
	return all
}

// nameOf returns the name of l, which is a limit of rule.
func nameOf(rule *descriptors.Rule, l *descriptors.RateLimit) limitName {
	name := limitName{rule: rule.Path}
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

// kindOf returns what two limits of one rule never have in common: window, algorithm and
// scope. A changed number of requests doesn't change it.
func kindOf(l *limit.Limit) string {
	kind := "per " + l.Window()
	if l.Algorithm != limit.DefaultAlgorithm {
		kind += ", " + l.Algorithm.String()
	}
	if l.Scope == limit.Instance {
		kind += ", per instance"
	}
	return kind
}

// Package descriptors compiles limits files to an immutable Config. A Config finds the rule for the entries of a request.
// A rule makes the names of its counters and its metric keys.
//
// A wildcard is a descriptor with a * in its key or value. The * matches any number of any characters. This package
// compares keys and values separately. envoyproxy/ratelimit first joins a key and a value with _, so there the entry
// (a_b, c) matches a rule for (a, b_c).
package descriptors

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors/condition"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// Config is a compiled set of limits files. When it is in force, it is immutable and safe for concurrent use.
type Config struct {
	domains            map[string]*Domain // the key is the name
	domainsInFileOrder []*Domain

	ShadowMode   *limitsfile.ShadowMode // the switch that replaces SHADOW_MODE, or nil
	HasOffSwitch bool                   // a switch has turned off some limits
	hasQuota     bool                   // a rule in force has a quota

	hashOnce sync.Once
	hash     string // the result of Hash
}

// HasQuota reports whether a rule in force has a quota. c can be nil.
func (c *Config) HasQuota() bool { return c != nil && c.hasQuota }

// Domain returns the domain with this name, or nil.
func (c *Config) Domain(name string) *Domain { return c.domains[name] }

// Domains returns all domains, sorted by name.
func (c *Config) Domains() []*Domain {
	return slices.SortedFunc(slices.Values(c.domainsInFileOrder), func(a, b *Domain) int {
		return strings.Compare(a.Name, b.Name)
	})
}

// IsShadow reports whether the service answers OK to all requests. setting is the value of SHADOW_MODE, which has an effect
// only if no switch replaces it.
func (c *Config) IsShadow(setting bool) bool {
	if c.ShadowMode != nil {
		return c.ShadowMode.IsOn
	}
	return setting
}

// Domain is a namespace of rules.
type Domain struct {
	Name         string
	Source       *limitsfile.Domain // the domain of the limits file, before it was compiled
	UntestedRule *Rule              // the rule of descriptors that are denied because a condition was not tested

	RequestMetrics Attachment // the counts of the metrics of all limits that RuleOfRequestLimit returns

	root siblingNodes

	// requestSpec has the defaults for limits that are part of requests. allowsRequestLimits reports whether such limits
	// have an effect.
	requestSpec         limit.Spec
	allowsRequestLimits bool

	observer Observer // nil before the Config is in force, and without an Observer
}

// Match returns the rule for the entries of one request descriptor, or nil if no limit in force matches.
//
// Each entry must match a descriptor of the next level. The first match of a level wins, without backtracking.
func (d *Domain) Match(entries []*ratelimitv3.RateLimitDescriptor_Entry) *Rule {
	return d.match(&lookup{domain: d}, entries)
}

// MatchWithBudget does what Match does, within the Budget of a call. If b has too few steps left to test a condition that can
// deny, MatchWithBudget returns UntestedRule, which denies.
func (d *Domain) MatchWithBudget(b *Budget, entries []*ratelimitv3.RateLimitDescriptor_Entry) *Rule {
	l := lookup{budget: *b, domain: d}
	rule := d.match(&l, entries)
	*b = l.budget
	return rule
}

// MatchesQuotaMode reports whether entries match a descriptor with quota_mode, even if its limits are off.
func (d *Domain) MatchesQuotaMode(b *Budget, entries []*ratelimitv3.RateLimitDescriptor_Entry) bool {
	l := lookup{budget: *b}
	n := d.find(&l, entries)
	*b = l.budget
	return n != nil && !l.isDenied && n.QuotaMode
}

func (d *Domain) match(l *lookup, entries []*ratelimitv3.RateLimitDescriptor_Entry) *Rule {
	n := d.find(l, entries)
	switch {
	case l.isDenied:
		return d.UntestedRule
	case n == nil:
		return nil
	}
	return n.rule
}

func (d *Domain) find(l *lookup, entries []*ratelimitv3.RateLimitDescriptor_Entry) *node {
	siblings := &d.root
	for i := range entries {
		n := siblings.find(entries[:i+1], l)
		if n == nil || l.isDenied || i == len(entries)-1 {
			return n
		}
		siblings = n.children
		if siblings == nil {
			return nil
		}
	}
	return nil
}

// Rule has the limits of a descriptor in a limits file, or the limit that is part of a request. When it is in force, it is immutable.
type Rule struct {
	// Path is the path to the rule in its file: `shop > service=checkout > path`.
	Path string

	// Limits has the limits in force, in file order. A rule that Match returns has at least one limit.
	Limits []*RateLimit

	limitsfile.RuleFields

	// HasHolds reports whether a limit of the descriptor has holds. In this case, refunds only release holds.
	HasHolds bool

	// sharedValues has a text for each entry of a request: the escaped pattern or condition that replaces the value in the
	// name of the counter, such as "/api/*". The text is "" if the name has the value. sharedValues is nil if no descriptor
	// has share_threshold.
	sharedValues []string

	isUntested bool // the rule is the UntestedRule of its domain

	enforcement enforcement
	metricKey   *metricKey // nil for the limit of a request
}

// ExceedsMaxHits reports whether n hits are more than MaxHits.
func (r *Rule) ExceedsMaxHits(n int64) bool { return r.MaxHits > 0 && n > int64(r.MaxHits) }

// IsUnlimited reports whether the only limit of r is unlimited.
func (r *Rule) IsUnlimited() bool { return len(r.Limits) == 1 && r.Limits[0].Unlimited }

// AdjustHitsForHolds returns the hits that a request of n hits charges to l, a limit of a rule with holds. A refund
// only releases holds. It never releases all holds of a counter at once.
func AdjustHitsForHolds(l *limit.Limit, n int64) int64 {
	if !l.Algorithm.HasHolds() {
		return max(n, 0)
	}
	return max(n, -limit.MaxHits+1)
}

// RateLimit is one limit of a rule. When it is in force, it is immutable.
type RateLimit struct {
	*limit.Limit // nil if Unlimited
	Unlimited    bool

	// Name is the name in responses. Other limits refer to Name in Replaces.
	Name string

	// Replaces has the names of the limits that don't count in a request with this limit.
	Replaces []string

	// Response is the current_limit of responses, which all responses share. It is nil if Unlimited is true.
	Response *rlsv3.RateLimitResponse_RateLimit

	// Metrics keeps the counts of the metrics for the limit. All limits in requests of one domain share their Metrics.
	Metrics *Attachment
}

// Observer gets the events of limits in force. Calls may overlap. Each method must return at once.
type Observer interface {
	// ExpressionFailed reports that d did not match, because its expression failed with err.
	ExpressionFailed(domain string, d *limitsfile.Descriptor, err error)

	// ConditionNotTested reports that the condition of d was not tested, because the Budget of the call was spent. It is
	// called at most once for each descriptor of a request.
	ConditionNotTested(domain string, d *limitsfile.Descriptor)
}

// Store has the Config in force. Its zero value is empty.
type Store struct {
	// Observer can be nil. The owner must set it before the first Set.
	Observer Observer

	// Prepare gets each Config before it comes into force. It can be nil. The owner must set it before the first Set.
	Prepare func(*Config)

	config atomic.Pointer[Config]
}

// Load returns the Config in force, or nil before the first Set.
func (s *Store) Load() *Config { return s.config.Load() }

// Set puts c in force.
func (s *Store) Set(c *Config) {
	if s.Prepare != nil {
		s.Prepare(c)
	}
	for _, d := range c.domainsInFileOrder {
		d.observer = s.Observer
	}
	s.config.Store(c)
}

// Attachment keeps a value that an observer attaches to a limit. It is safe for concurrent use.
type Attachment struct{ atomic.Value }

// Budget bounds the work of the conditions of one call. Its zero value is a full budget.
type Budget = condition.Budget

// ErrNotTested is the Failure of a Candidate if the Budget has too few steps left to test its condition.
var ErrNotTested = condition.ErrNotTested

// lookup is the state of one search for the rule of a descriptor.
type lookup struct {
	budget Budget
	domain *Domain // the observer of domain gets the conditions that fail; nil if nobody observes the search

	untestedNodes []*node // the nodes with conditions that were not tested, because the budget was spent
	isDenied      bool    // a node of untestedNodes can deny, so the descriptor is denied
}

// addUntestedNode records that the condition of n was not tested.
//
// If n can deny, the descriptor of the request is denied, because a client could otherwise avoid limits with a long value.
// If n can't deny, n does not match, so siblings of n can still match and deny.
func (l *lookup) addUntestedNode(n *node) {
	if slices.Contains(l.untestedNodes, n) {
		return
	}
	l.untestedNodes = append(l.untestedNodes, n)
	l.isDenied = l.isDenied || n.canDeny
	if len(l.untestedNodes) == 1 && l.domain != nil && l.domain.observer != nil {
		l.domain.observer.ConditionNotTested(l.domain.Name, n.Descriptor)
	}
}

// canDeny reports whether r, or a rule in or below children, can deny. r and children can be nil.
func canDeny(r *Rule, children *siblingNodes) bool {
	if r != nil && !r.ShadowMode && slices.ContainsFunc(r.Limits, func(l *RateLimit) bool { return !l.Unlimited }) {
		return true
	}
	return children != nil && slices.ContainsFunc(children.nodes, func(n node) bool { return n.canDeny })
}

// untestedLimit is the limit of all UntestedRules. It admits 0 requests per second, and denies while Redis fails.
var untestedLimit, _ = limit.New(limit.Spec{Unit: limit.Second, OnBackendFailure: limit.FailDeny}) // a valid Spec

// newUntestedRule returns the UntestedRule of a domain. All descriptors with this rule share one counter and one metric key.
func newUntestedRule(domain string) *Rule {
	l := &RateLimit{Limit: untestedLimit, Metrics: new(Attachment), Response: newResponse(untestedLimit, "")}
	return &Rule{Path: fields.Printable(domain) + " > a condition that was not tested", Limits: []*RateLimit{l}, isUntested: true}
}

// untestedCounter replaces the entries in names of counters. untestedMetric replaces the entries in metric keys.
const untestedCounter, untestedMetric = "|=not%20tested", ".not_tested"

// Package descriptors compiles limits files to an immutable Config. A Config returns the rule for a request
// descriptor and the name of its counter.
//
// A wildcard is a descriptor with a * in its key or value, which matches any number of any characters. Keys and
// values are compared separately. envoyproxy/ratelimit joins them with _ first, so there the entry (a_b, c) matches
// a rule for (a, b_c).
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

// Config is a compiled set of limits files. Once in force, it is immutable and safe for concurrent use.
type Config struct {
	domains            map[string]*Domain
	domainsInFileOrder []*Domain // in file order

	shadowMode   *limitsfile.ShadowMode // nil if no switch replaces SHADOW_MODE
	hasOffSwitch bool                   // a switch has taken limits out of force

	hashOnce sync.Once
	hash     string // see Hash
}

// Domain returns the domain of that name, or nil.
func (c *Config) Domain(name string) *Domain { return c.domains[name] }

// Domains returns all domains, sorted by name.
func (c *Config) Domains() []*Domain {
	return slices.SortedFunc(slices.Values(c.domainsInFileOrder), func(a, b *Domain) int {
		return strings.Compare(a.Name, b.Name)
	})
}

// ShadowMode returns the switch that replaces SHADOW_MODE, or nil.
func (c *Config) ShadowMode() *limitsfile.ShadowMode { return c.shadowMode }

// IsShadow reports whether the service answers OK to all requests. setting is SHADOW_MODE.
func (c *Config) IsShadow(setting bool) bool {
	if c.shadowMode != nil {
		return c.shadowMode.On
	}
	return setting
}

// Domain is a namespace of rules.
type Domain struct {
	Name string

	root   siblingNodes
	source *limitsfile.Domain

	// requestSpec has the defaults for limits of requests, which allowsRequestLimits can turn off.
	requestSpec         limit.Spec
	allowsRequestLimits bool
	requestMetrics      Attachment

	untestedRule *Rule

	observer Observer // nil until the Config is in force, and if nobody observes
}

// Match returns the rule for the entries of one request descriptor, or nil if no limit in force matches.
//
// Each entry must match a descriptor of the next level. The first match of a level wins, without backtracking.
func (d *Domain) Match(entries []*ratelimitv3.RateLimitDescriptor_Entry) *Rule {
	return d.match(&lookup{domain: d}, entries)
}

// MatchWithin is Match for a descriptor of a call that has b for all its descriptors. If b does not suffice to test
// a descriptor that can deny, MatchWithin returns UntestedRule, which denies.
func (d *Domain) MatchWithin(b *Budget, entries []*ratelimitv3.RateLimitDescriptor_Entry) *Rule {
	l := lookup{budget: *b, domain: d}
	rule := d.match(&l, entries)
	*b = l.budget
	return rule
}

// MatchesQuotaMode reports whether entries match a descriptor with quota_mode, also without a limit in force.
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
		return d.untestedRule
	case n == nil:
		return nil
	}
	return n.rule
}

// find returns the node that entries match, or nil.
func (d *Domain) find(l *lookup, entries []*ratelimitv3.RateLimitDescriptor_Entry) *node {
	list := &d.root
	for i := range entries {
		n := list.find(entries[:i+1], l)
		if n == nil || l.isDenied || i == len(entries)-1 {
			return n
		}
		if list = n.children; list == nil {
			return nil
		}
	}
	return nil
}

// Rule has the limits of a descriptor. It is immutable once in force.
type Rule struct {
	// Path is the path to the rule in its file: `shop > service=checkout > path`.
	Path string

	// Limits has the limits in force, in file order. A rule that Match returns has at least one.
	Limits []*RateLimit

	limitsfile.RuleFields

	// HasHolds reports whether a limit has holds. Refunds then release holds only.
	HasHolds bool

	// sharedValues has, for each entry, the escaped pattern or condition that takes the place of the value in the
	// counter's name, or an empty text. It is nil without share_threshold.
	sharedValues []string

	isUntested bool // see UntestedRule

	enforcement enforcement
	metricKey   *metricKey
}

// ExceedsMaxHits reports whether n hits exceed MaxHits.
func (r *Rule) ExceedsMaxHits(n int64) bool { return r.MaxHits > 0 && n > int64(r.MaxHits) }

// IsUnlimited reports whether the only limit of r is unlimited.
func (r *Rule) IsUnlimited() bool { return len(r.Limits) == 1 && r.Limits[0].Unlimited }

// AdjustHitsForHolds returns the hits that a request of n hits charges to l, a limit of a rule with holds. A refund
// releases holds only, and never all of them.
func AdjustHitsForHolds(l *limit.Limit, n int64) int64 {
	if !l.Algorithm.HasHolds() {
		return max(n, 0)
	}
	return max(n, -limit.MaxHits+1)
}

// RateLimit is one limit of a rule. It is immutable once in force.
type RateLimit struct {
	*limit.Limit // nil if Unlimited
	Unlimited    bool

	// Name is shown in responses. Replaces of other limits refers to it.
	Name string

	// Replaces names the limits that don't count in a request with this limit.
	Replaces []string

	// Response is the current_limit of responses, which share it; nil if Unlimited.
	Response *rlsv3.RateLimitResponse_RateLimit

	// Metrics keeps what the metrics count about the limit. The limits of requests in one domain share it.
	Metrics *Attachment
}

// Observer receives the events of limits in force. Calls may overlap, and must return at once.
type Observer interface {
	// ExpressionFailed reports that d did not match, because its expression could not be evaluated.
	ExpressionFailed(domain string, d *limitsfile.Descriptor, err error)

	// ConditionNotTested reports d, the first descriptor whose condition the Budget of a call could not test.
	ConditionNotTested(domain string, d *limitsfile.Descriptor)
}

// Store has the Config in force. Its zero value is empty.
type Store struct {
	// Observer can be nil. It must be set before the first Set.
	Observer Observer

	// Prepare, unless nil, gets each Config before it comes into force. It must be set before the first Set.
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

// Attachment keeps a value of an observer with a limit. It is safe for concurrent use.
type Attachment struct{ value atomic.Value }

// Load returns the value, or nil before the first Store.
func (a *Attachment) Load() any { return a.value.Load() }

// Store sets the value, which must not be nil.
func (a *Attachment) Store(value any) { a.value.Store(value) }

// Budget bounds the work of the conditions of one call. Its zero value is a full budget.
type Budget = condition.Budget

// ErrNotTested is the Failure of a Candidate whose condition took more steps than the Budget had left.
var ErrNotTested = condition.ErrNotTested

type lookup struct {
	budget Budget
	// observedDomain has the observer of conditions that fail, or is nil.
	domain *Domain

	untestedNodes []*node // nodes whose conditions were not tested, because the budget was spent
	isDenied      bool    // one of untestedNodes can deny, so the descriptor is denied
}

// addUntested records that the condition of n was not tested.
//
// If n can deny, the descriptor is denied, so that no client can avoid the limits of n, or of stricter
// siblings, with a long value. If n can't deny, n does not match, so its siblings can still deny.
func (l *lookup) addUntested(n *node) {
	if slices.Contains(l.untestedNodes, n) { // an earlier search has compared n with another entry
		return
	}
	l.untestedNodes = append(l.untestedNodes, n)
	l.isDenied = l.isDenied || n.canDeny
	if len(l.untestedNodes) == 1 && l.domain != nil && l.domain.observer != nil {
		l.domain.observer.ConditionNotTested(l.domain.Name, n.Descriptor)
	}
}

func canDeny(r *Rule, children *siblingNodes) bool {
	if r != nil && !r.ShadowMode && slices.ContainsFunc(r.Limits, func(l *RateLimit) bool { return !l.Unlimited }) {
		return true
	}
	return children != nil && slices.ContainsFunc(children.nodes, func(n node) bool { return n.canDeny })
}

// untestedLimit denies all hits, also without Redis.
var untestedLimit = func() *limit.Limit {
	l, err := limit.New(limit.Spec{Algorithm: limit.FixedWindow, Unit: limit.Second, OnBackendFailure: limit.FailDeny})
	if err != nil {
		panic(err)
	}
	return l
}()

// newUntestedRule returns the rule of UntestedRule. All its descriptors share one counter and one metric key.
func newUntestedRule(domain string) *Rule {
	l := &RateLimit{Limit: untestedLimit, Metrics: new(Attachment), Response: newResponse(untestedLimit, "")}
	return &Rule{Path: fields.Printable(domain) + " > a condition that was not tested", Limits: []*RateLimit{l}, isUntested: true}
}

// untestedCounter and untestedMetric take the place of the entries in the names of the counter and of the metrics.
const untestedCounter, untestedMetric = "|=not%20tested", ".not_tested"

// UntestedRule returns the rule of descriptors that are denied because a condition was not tested.
func (d *Domain) UntestedRule() *Rule { return d.untestedRule }

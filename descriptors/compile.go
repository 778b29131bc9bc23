package descriptors

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

const batchSize = 100 // the number of descriptors that take about 0.1 ms

// letCallsRun lets the goroutines of calls run after each batchSize descriptors. i is the index of a descriptor.
func letCallsRun(i int) {
	if i%batchSize == batchSize-1 {
		runtime.Gosched()
	}
}

// Compile returns the Config of a checked set. It can't fail.
func Compile(set *limitsfile.Set) *Config {
	c := &Config{domains: map[string]*Domain{}, ShadowMode: set.ShadowMode}
	compiler := compiler{responses: responses{}}
	for _, d := range set.Domains {
		domain := &Domain{Name: d.Name, Source: d, UntestedRule: newUntestedRule(d.Name)}
		domain.requestSpec, domain.allowsRequestLimits = d.RequestLimit()
		domain.allowsRequestLimits = domain.allowsRequestLimits && d.OffSwitch == nil
		domain.root = compiler.compile(d.Descriptors, path{domain: d.Name, isSwitchedOff: d.OffSwitch != nil})
		c.domains[d.Name] = domain
		c.domainsInFileOrder = append(c.domainsInFileOrder, domain)
		c.hasQuota = compiler.hasQuota
		c.HasOffSwitch = c.HasOffSwitch || compiler.hasOffSwitch || d.OffSwitch != nil
	}
	return c
}

type compiler struct {
	responses    responses
	hasOffSwitch bool // a switch has turned off limits of a descriptor
	hasQuota     bool // a rule has a quota
}

// path is a domain and the descriptors from its root to one descriptor.
type path struct {
	domain        string
	isSwitchedOff bool                     // a switch has turned off all limits of the domain
	trail         []*limitsfile.Descriptor // the descriptors from the root to the last descriptor of the path
}

// child returns the path to d below p. The next call of child for p can overwrite the result.
func (p path) child(d *limitsfile.Descriptor) path {
	p.trail = append(p.trail, d)
	return p
}

func (p path) String() string { return limitsfile.Path(p.domain, p.trail) }

// compile returns the nodes of list, which has the descriptors below parent. A copy that an override has made can share
// the children of its original.
func (c *compiler) compile(list []*limitsfile.Descriptor, parent path) siblingNodes {
	s := newSiblingNodes(list)
	for i, d := range list {
		letCallsRun(i)
		n, p := &s.nodes[i], parent.child(d)
		if override := d.OffSwitch(); override != nil {
			n.offSwitch, c.hasOffSwitch = &OffSwitch{p.String(), override.Notes}, true
		}
		n.rule = c.newRule(d, p)
		original := s.originalOf(d)
		switch {
		case len(d.Descriptors) == 0:
		case original != nil && len(original.Descriptors) > 0 && &original.Descriptors[0] == &d.Descriptors[0]:
			n.children = original.children
		default:
			children := c.compile(d.Descriptors, p)
			n.children = &children
		}
		n.canDeny = canDeny(n.rule, n.children)
	}
	return s
}

// newRule returns the rule of d, or nil if no limit of d is in force.
func (c *compiler) newRule(d *limitsfile.Descriptor, p path) *Rule {
	var limits []*RateLimit
	for _, l := range d.Limits {
		if l.Enabled && !p.isSwitchedOff {
			limits = append(limits, c.responses.newRateLimit(l))
		}
	}
	if len(limits) == 0 {
		return nil
	}
	c.hasQuota = c.hasQuota || d.Quota != nil
	return &Rule{
		Path:         p.String(),
		Limits:       limits,
		RuleFields:   d.RuleFields,
		enforcement:  newEnforcement(d.EnforcedPercent),
		HasHolds:     d.HasHolds(),
		sharedValues: sharedValues(p.trail),
		metricKey:    newMetricKey(p),
	}
}

// sharedValues returns the Rule.sharedValues of the rule at the end of trail. It adds a = in front of the text of a
// condition. Patterns have a = only in escaped form, so no pattern has the same text.
func sharedValues(trail []*limitsfile.Descriptor) []string {
	patterns := limitsfile.CounterPatterns(trail)
	if len(patterns) == 0 {
		return nil
	}
	values := make([]string, len(patterns))
	for i, pattern := range patterns {
		switch {
		case pattern == "":
		case cmp.Or(trail[i].Original, trail[i]).Condition != nil:
			values[i] = string(appendEscaped([]byte{'='}, pattern, &escapedInValue))
		default:
			values[i] = string(appendEscaped(nil, pattern, &escapedInPattern))
		}
	}
	return values
}

func (c responses) newRateLimit(l *limitsfile.Limit) *RateLimit {
	r := &RateLimit{Limit: l.Limit, Unlimited: l.Unlimited, Name: l.Name, Replaces: l.Replaces, Metrics: new(Attachment)}
	if !l.Unlimited {
		key := responseKey{l.Limit, l.Name}
		if c[key] == nil {
			c[key] = newResponse(l.Limit, l.Name)
		}
		r.Response = c[key]
	}
	return r
}

// responses has the messages current_limit of responses. Limits with the same Limit and name share a message.
type responses map[responseKey]*rlsv3.RateLimitResponse_RateLimit

type responseKey struct {
	limit *limit.Limit
	name  string
}

func newResponse(l *limit.Limit, name string) *rlsv3.RateLimitResponse_RateLimit {
	response := &rlsv3.RateLimitResponse_RateLimit{Name: name, RequestsPerUnit: l.Requests}
	if l.Unit != limit.Millisecond { // Envoy has no such unit
		response.Unit = rlsv3.RateLimitResponse_RateLimit_Unit(l.Unit)
	}
	if l.Multiplier > 1 {
		response.UnitMultiplier = wrapperspb.UInt32(l.Multiplier)
	}
	return response
}

// RequestPath returns the path of the rules that RuleOfRequestLimit returns.
func (d *Domain) RequestPath() string {
	return fields.Printable(d.Name) + " > the request's own limit"
}

// RuleOfRequestLimit returns the rule for a limit that is part of a request. The domain sets the algorithm of such limits.
// If the domain does not allow limits in requests, the rule has no limits.
func (d *Domain) RuleOfRequestLimit(override *ratelimitv3.RateLimitDescriptor_RateLimitOverride) (*Rule, error) {
	r := &Rule{Path: d.RequestPath()}
	if !d.allowsRequestLimits {
		return r, nil
	}
	spec := d.requestSpec
	spec.Requests = override.GetRequestsPerUnit()
	spec.Unit = limit.Unit(override.GetUnit())
	isKnownUnit := int32(spec.Unit) == int32(override.GetUnit()) && limit.Second <= spec.Unit && spec.Unit <= limit.Week
	if !isKnownUnit {
		return nil, fmt.Errorf("limit: unit: got %d, want SECOND (1), MINUTE (2), HOUR (3), DAY (4), MONTH (5), YEAR (6) or WEEK (7)", override.GetUnit())
	}
	if m := override.GetUnitMultiplier(); m != nil {
		if m.GetValue() == 0 {
			return nil, errors.New("limit: unit_multiplier: got 0, want at least 1")
		}
		spec.Multiplier = m.GetValue()
	}
	l, err := limit.New(d.Source.WithCalendar(spec))
	if err != nil {
		return nil, fmt.Errorf("limit: %w", err)
	}
	r.Limits = []*RateLimit{{Limit: l, Response: newResponse(l, ""), Metrics: &d.RequestMetrics}}
	return r, nil
}

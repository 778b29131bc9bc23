package descriptors

import (
	"errors"
	"fmt"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/limit"
)

// stated is a limit as a limits file has it, in force or not.
type stated struct {
	*RateLimit
	enabled bool
	line    int

	// under is what an override with unlimited: true lies over; else nil.
	under *limit.Spec
}

// spec is the numbers of l, in force or under it; nil if there are none.
func (l *stated) spec() *limit.Spec {
	switch {
	case l == nil:
		return nil
	case l.Unlimited:
		return l.under
	}
	return &l.Spec
}

// limit compiles a rate_limit; nil if it is wrong.
func (d *document) limit(n *node, o *object) *stated {
	l := &stated{RateLimit: &RateLimit{Name: o.text("name")}, enabled: true, line: o.node.Line}
	if v := pick(o, d.domain.defaults, "enabled"); v != nil {
		l.enabled = v.flag
	}
	d.replaces(n, o, l.RateLimit)
	if v := o.field("unlimited"); v != nil && (v.flag || v.bad) {
		l.Unlimited = true
		return l.orNil(d.unlimited(n, o) && !v.bad)
	}
	spec, ok := d.spec(n, o)
	ok = d.make(l.RateLimit, n, o, spec) && ok
	return l.orNil(ok)
}

// make makes l a limit of spec, which o has stated.
func (d *document) make(l *RateLimit, n *node, o *object, spec limit.Spec) (ok bool) {
	made, err := limit.New(spec)
	if err != nil {
		for reason := range strings.SplitSeq(err.Error(), "\n") {
			field, _, _ := strings.Cut(reason, " ")
			d.errorf(o.at(field), n, "%s", reason)
		}
		return false
	}
	l.hold(made)
	return true
}

func (l *stated) orNil(ok bool) *stated {
	if !ok {
		return nil
	}
	return l
}

// hold makes l a limit that counts.
func (l *RateLimit) hold(made *limit.Limit) {
	l.Limit = made
	l.Response = &rlsv3.RateLimitResponse_RateLimit{
		Name:            l.Name,
		RequestsPerUnit: made.Requests,
		Unit:            rlsv3.RateLimitResponse_RateLimit_Unit(made.Unit),
	}
	if made.Multiplier != 1 {
		l.Response.UnitMultiplier = wrapperspb.UInt32(made.Multiplier)
	}
}

// spec gathers what limit.New needs. Where that is not ok, what is wrong is left
// out, so that limit.New finds what else is, and nothing that follows from it.
func (d *document) spec(n *node, o *object) (spec limit.Spec, ok bool) {
	ok = true
	for _, v := range o.fields {
		ok = ok && !v.bad
	}
	spec = limitSpec(o, d.domain.defaults)
	if v := pick(o, d.domain.defaults, "algorithm"); v != nil && v.bad {
		spec.Burst = 0
	}
	hasUnit := false
	switch v := o.field("unit"); {
	case v == nil || v.text == "" && !v.bad:
		d.errorf(o.at("unit"), n, "unit is missing; %s", oneOf("", limit.UnitNames()))
	case !v.bad:
		hasUnit = d.unit(&spec, n, v)
	}
	if !hasUnit {
		spec.Unit, spec.Multiplier, ok = limit.Second, 1, false // a window that all can have
	}
	if o.field("requests_per_unit") == nil {
		d.warnf(o.node, n, "requests_per_unit is missing, so no request passes; write requests_per_unit: 0 if that is meant")
	}
	return spec, ok
}

// unit sets the unit of spec.
func (d *document) unit(spec *limit.Spec, n *node, v *value) (ok bool) {
	if spec.Unit, ok = limit.ParseUnit(v.text); !ok {
		d.errorf(v.node, n, "unit %s is not known; %s", shown(v.node), oneOf(v.text, limit.UnitNames()))
	}
	return ok
}

// limitSpec is what o says, or else defaults, without the unit.
func limitSpec(o, defaults *object) (s limit.Spec) {
	fill(&s, func(name string) *value { return pick(o, defaults, name) })
	if pick(o, defaults, "charge_denied") == nil {
		s.ChargeDenied = s.Algorithm.DefaultChargeDenied()
	}
	if o.field("burst") == nil && !s.Algorithm.UsesBurst() {
		s.Burst = 0 // that of the defaults is for token buckets
	}
	return s
}

// fill sets in s what field has, but for the unit.
func fill(s *limit.Spec, field func(name string) *value) {
	if v := field("algorithm"); v != nil {
		s.Algorithm, _ = limit.ParseAlgorithm(v.text)
	}
	if v := field("requests_per_unit"); v != nil {
		s.Requests = v.num
	}
	if v := field("unit_multiplier"); v != nil {
		s.Multiplier = v.num
	}
	if v := field("burst"); v != nil {
		s.Burst = v.num
	}
	if v := field("charge_denied"); v != nil {
		s.ChargeDenied = v.flag
	}
	if v := field("scope"); v != nil {
		s.Scope, _ = limit.ParseScope(v.text)
	}
	if v := field("on_backend_failure"); v != nil {
		s.OnBackendFailure, _ = limit.ParseFailureMode(v.text)
	}
	if v := field("fallback_ratio"); v != nil {
		s.FallbackRatio = v.ratio
	}
}

func pick(o, defaults *object, name string) *value {
	if v := o.field(name); v != nil {
		return v
	}
	return defaults.field(name)
}

// unlimited checks what stands beside unlimited: true. As in
// envoyproxy/ratelimit a unit that is none does no harm.
func (d *document) unlimited(n *node, o *object) bool {
	ok := true
	for _, v := range o.fields {
		_, isUnit := limit.ParseUnit(v.text)
		switch {
		case v.bad:
			ok = false
		case v.row.name == "unit" && isUnit, v.row.ours && v.row.name != "enabled":
			d.errorf(v.node, n, "%s has no meaning beside unlimited: true", v.row.name)
			ok = false
		case v.row.name == "unit" && v.text != "":
			d.warnf(v.node, n, "unit %s is not known, and has no meaning beside unlimited: true", shown(v.node))
		}
	}
	return ok
}

// replaces reads the names of the limits that l replaces.
func (d *document) replaces(n *node, o *object, l *RateLimit) {
	v := o.field("replaces")
	for _, item := range d.items(v, n) {
		r := d.object(atReplaces, n, item)
		switch name := r.text("name"); {
		case name == "":
			if !r.bad("name") {
				d.errorf(r.at("name"), n, "an item of replaces needs the name of a limit")
			}
		case name == l.Name:
			d.errorf(r.at("name"), n, "a limit can't replace itself (%s)", printable(name))
		default:
			l.Replaces = append(l.Replaces, name)
		}
	}
}

// OwnLimit makes the rule for a limit that a request descriptor brings along. It
// counts as the domain's defaults say, else by fixed windows; defaults with
// enabled: false give a rule without limits. The error says what is wrong with
// o, in words for the caller.
func (d *Domain) OwnLimit(o *ratelimitv3.RateLimitDescriptor_RateLimitOverride) (*Rule, error) {
	r := &Rule{Path: d.Name + " > the request's own limit"}
	if v := d.defaults.field("enabled"); v != nil && !v.flag {
		return r, nil
	}
	spec := limitSpec(nil, d.defaults)
	spec.Requests = o.GetRequestsPerUnit()
	if spec.Unit = limit.Unit(o.GetUnit()); int32(spec.Unit) != int32(o.GetUnit()) || spec.Unit < limit.Second || spec.Unit > limit.Week {
		return nil, fmt.Errorf("limit: unit %d is none of SECOND (1), MINUTE (2), HOUR (3), DAY (4), MONTH (5), YEAR (6), WEEK (7)", o.GetUnit())
	}
	if m := o.GetUnitMultiplier(); m != nil {
		if m.GetValue() == 0 {
			return nil, errors.New("limit: unit_multiplier must be over 0")
		}
		spec.Multiplier = m.GetValue()
	}
	made, err := limit.New(spec)
	if err != nil {
		return nil, fmt.Errorf("limit: %w", err)
	}
	l := &RateLimit{}
	l.hold(made)
	r.Limits = []*RateLimit{l}
	return r, nil
}

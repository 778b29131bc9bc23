package limitsfile

import (
	"strings"

	"github.com/seed-81f232ab/rls/limit"
)

// spec returns the numbers of l, or those it replaces; nil if there are none.
func (l *Limit) spec() *limit.Spec {
	switch {
	case l == nil:
		return nil
	case l.Unlimited:
		return l.replaced
	}
	return &l.Spec
}

// limit reads a rate_limit. It returns nil after reporting a mistake.
func (d *document) limit(pos *position, o *object) *Limit {
	l := &Limit{Name: o.text("name"), Enabled: true, line: o.node.Line}
	if v := fieldOrDefault(o, d.domain.defaults, "enabled"); v != nil {
		l.Enabled = v.flag
	}
	d.replaces(pos, o, l)
	if v := o.field("unlimited"); v != nil && (v.flag || v.invalid) {
		l.Unlimited = true
		return l.orNil(d.unlimited(pos, o) && !v.invalid)
	}
	spec, ok := d.spec(pos, o)
	ok = d.derive(l, pos, o, spec) && ok
	return l.orNil(ok)
}

// derive sets l.Limit from spec, which was read from o.
func (d *document) derive(l *Limit, pos *position, o *object, spec limit.Spec) (ok bool) {
	var err error
	if l.Limit, err = limit.New(spec); err != nil {
		for reason := range strings.SplitSeq(err.Error(), "\n") {
			field, _, _ := strings.Cut(reason, " ")
			d.errorf(o.nodeOf(strings.TrimSuffix(field, ":")), pos, "%s", reason)
		}
		return false
	}
	return true
}

func (l *Limit) orNil(ok bool) *Limit {
	if !ok {
		return nil
	}
	return l
}

// spec gathers the arguments of limit.New. If ok is false, wrong fields are left out of
// the spec, so limit.New reports other mistakes and nothing that follows from these.
func (d *document) spec(pos *position, o *object) (spec limit.Spec, ok bool) {
	ok = true
	for _, v := range o.fields {
		ok = ok && !v.invalid
	}
	spec = limitSpec(o, d.domain.defaults)
	if v := fieldOrDefault(o, d.domain.defaults, "algorithm"); v != nil && v.invalid {
		spec.Burst = 0
	}
	hasUnit := false
	switch v := o.field("unit"); {
	case v == nil || v.text == "" && !v.invalid:
		d.errorf(o.nodeOf("unit"), pos, "unit is missing; want %s", OneOf("", limit.UnitNames()))
	case !v.invalid:
		hasUnit = d.unit(&spec, pos, v)
	}
	if !hasUnit {
		spec.Unit, spec.Multiplier, ok = limit.Second, 1, false // a valid window
	}
	if o.field("requests_per_unit") == nil {
		d.warnf(o.node, pos, "requests_per_unit is missing, so no request passes; write requests_per_unit: 0 if that is meant")
	}
	return spec, ok
}

// unit sets the unit of spec.
func (d *document) unit(spec *limit.Spec, pos *position, v *value) (ok bool) {
	if spec.Unit, ok = limit.ParseUnit(v.text); !ok {
		d.errorf(v.node, pos, "unit: got %s, want %s", display(v.node), OneOf(v.text, limit.UnitNames()))
	}
	return ok
}

// limitSpec returns the fields of o, else those of defaults, except the unit.
func limitSpec(o, defaults *object) (s limit.Spec) {
	setFields(&s, func(name string) *value { return fieldOrDefault(o, defaults, name) })
	if fieldOrDefault(o, defaults, "charge_denied") == nil {
		s.ChargeDenied = s.Algorithm.DefaultChargeDenied()
	}
	if o.field("burst") == nil && !s.Algorithm.UsesBurst() {
		s.Burst = 0 // the default burst is not for this algorithm
	}
	return s
}

// setFields sets the fields of s that field returns, except the unit.
func setFields(s *limit.Spec, field func(name string) *value) {
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

// pick returns the field of o, else that of defaults; nil if neither has it.
func fieldOrDefault(o, defaults *object, name string) *value {
	if v := o.field(name); v != nil {
		return v
	}
	return defaults.field(name)
}

// unlimited checks the fields beside unlimited: true. An unknown unit is allowed, as in
// envoyproxy/ratelimit.
func (d *document) unlimited(pos *position, o *object) bool {
	ok := true
	for _, v := range o.fields {
		_, isUnit := limit.ParseUnit(v.text)
		switch {
		case v.invalid:
			ok = false
		case v.row.name == "unit" && isUnit, v.row.extension && v.row.name != "enabled":
			d.errorf(v.node, pos, "%s has no meaning beside unlimited: true", v.row.name)
			ok = false
		case v.row.name == "unit" && v.text != "":
			d.warnf(v.node, pos, "unit %s is unknown, and has no meaning beside unlimited: true", display(v.node))
		}
	}
	return ok
}

// replaces reads the names of the limits that l replaces.
func (d *document) replaces(pos *position, o *object, l *Limit) {
	for _, item := range d.items(o.field("replaces"), pos) {
		r := d.object(replacesLevel, pos, item)
		switch name := r.text("name"); {
		case name == "":
			if !r.invalid("name") {
				d.errorf(r.nodeOf("name"), pos, "an item of replaces needs the name of a limit")
			}
		case name == l.Name:
			d.errorf(r.nodeOf("name"), pos, "a limit can't replace itself (%s)", Printable(name))
		default:
			l.Replaces = append(l.Replaces, name)
		}
	}
}

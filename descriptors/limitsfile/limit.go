package limitsfile

import (
	"slices"
	"strings"

	"github.com/seed-81f232ab/rls/limit"
)

// limit reads a rate_limit. It returns nil after reporting a mistake.
func (d *document) limit(pos *place, o *object) *Limit {
	l := &Limit{Name: o.field("name").text, Enabled: true, Line: o.node.Line}
	if v := o.fieldOr(d.domain.defaults, "enabled"); v.given() {
		l.Enabled = v.flag
	}
	d.readReplaces(pos, o, l)
	mistakes := d.mistakes
	if v := o.field("unlimited"); v.flag || v.invalid {
		l.Unlimited = true
		d.checkUnlimited(pos, o)
	} else {
		l.Limit = d.newLimit(pos, o, d.spec(pos, o))
		d.checkLease(pos, o, l.Limit)
		if v := o.field("burst"); l.Limit != nil && v.given() && v.num > 0 && l.Requests == 0 {
			d.warnf(v.node, pos, "burst: got %d, but the bucket is never refilled with requests_per_unit 0, so no request passes; want requests_per_unit above 0, or no burst", v.num)
		}
	}
	if d.mistakes > mistakes || o.invalid() {
		return nil
	}
	l.defaultFields = l.fieldsFrom(d.domain.defaults) &^ o.fieldSet()
	return l
}

// newLimit returns the limit of spec, which was read from o. Equal specs share a limit. It
// returns nil after reporting a mistake.
func (d *document) newLimit(pos *place, o *object, spec limit.Spec) *limit.Limit {
	if l := d.limits[spec]; l != nil {
		return l
	}
	l, err := limit.New(spec)
	if err == nil {
		d.limits[spec] = l
		return l
	}
	for reason := range strings.SplitSeq(err.Error(), "\n") {
		field, _, _ := strings.Cut(reason, " ")
		d.errorf(o.field(strings.TrimSuffix(field, ":")).node, pos, "%s", reason)
	}
	return nil
}

// checkLease warns if the lease of l, which was read from o, has no effect. l can be nil.
func (d *document) checkLease(pos *place, o *object, l *limit.Limit) {
	if v := o.field("lease"); l != nil && v.flag && l.LeasePermits() == 0 {
		d.warnf(v.node, pos, "lease has no effect, because lease_waste %v of %d hits is fewer than %d permits", l.WasteShare(), l.Capacity(), limit.MinLeasePermits)
	}
}

// spec returns the spec of o. It leaves invalid fields out, so limit.New reports only
// mistakes in the other fields.
func (d *document) spec(pos *place, o *object) limit.Spec {
	spec := newSpec(o, d.domain.defaults)
	if o.fieldOr(d.domain.defaults, "algorithm").invalid {
		spec.Burst = 0
	}
	switch unit := o.field("unit"); {
	case unit.invalid:
	case spec.Algorithm.HasHolds():
	case unit.text == "":
		d.errorf(unit.node, pos, "unit is missing; want %s", OneOf("", limit.UnitNames()))
	default:
		d.checkUnit(pos, unit)
	}
	d.checkHolds(pos, o, spec.Algorithm)
	if spec.Unit == 0 {
		spec.Unit, spec.Multiplier = limit.Second, 1 // a valid window
	}
	if !o.field("requests_per_unit").given() {
		d.warnf(o.node, pos, "requests_per_unit is missing, so no request passes; write requests_per_unit: 0 if that is meant")
	}
	return spec
}

// checkHolds reports the fields of o that a limit with holds can't have.
func (d *document) checkHolds(pos *place, o *object, a limit.Algorithm) {
	if !a.HasHolds() {
		return
	}
	const noWindow = "which has no window; a hold ends when it is released, or after hold (hold: 30s)"
	for _, f := range [...]struct{ name, reason string }{
		{"unit", noWindow}, {"unit_multiplier", noWindow}, {"charge_denied", "because a denied request takes no slot"},
	} {
		if v := o.field(f.name); v.given() {
			d.errorf(v.node, pos, "%s has no meaning with algorithm %s, %s; remove %s", f.name, a, f.reason, f.name)
		}
	}
}

// needsReleases reports whether d has a limit with holds but rejects refunds, which release holds.
func (d *Descriptor) needsReleases() bool {
	return d.NoRefunds && slices.ContainsFunc(d.Limits, func(l *Limit) bool { return !l.Unlimited && l.Algorithm.HasHolds() })
}

const refundsForHolds = "refunds: false has no meaning with algorithm concurrency, because refunds release its holds; remove refunds"

func (d *document) checkUnit(pos *place, v value) {
	if _, ok := limit.ParseUnit(v.text); !ok {
		d.errorf(v.node, pos, "unit: got %s, want %s", display(v.node), OneOf(v.text, limit.UnitNames()))
	}
}

// newSpec returns a spec with each field from o, or from defaults if o does not have it.
func newSpec(o, defaults *object) limit.Spec {
	return changeSpec(limit.Spec{ChargeDenied: limit.DefaultAlgorithm.DefaultChargeDenied()}, o, defaults)
}

// changeSpec returns s with each field from o, or from defaults if o does not have it. If the
// algorithm changes, the other fields take the new algorithm's defaults, unless s had another
// value than the old default.
func changeSpec(s limit.Spec, o, defaults *object) limit.Spec {
	followsAlgorithm := s.ChargeDenied == s.Algorithm.DefaultChargeDenied()
	for _, object := range []*object{defaults, o} {
		for _, v := range object.all() {
			if set := specFields[v.row.name]; set != nil {
				set(&s, v)
			}
		}
	}
	if followsAlgorithm && !o.fieldOr(defaults, "charge_denied").given() {
		s.ChargeDenied = s.Algorithm.DefaultChargeDenied()
	}
	if s.Algorithm.HasHolds() {
		s.ChargeDenied = false // neither the default nor an old value is for this algorithm
	}
	if !o.field("burst").given() && !s.Algorithm.UsesBurst() {
		s.Burst = 0 // the default burst is not for this algorithm
	}
	if !o.field("hold").given() && !s.Algorithm.HasHolds() {
		s.Hold = 0
	}
	if !o.field("timezone").given() && !s.CanHaveTimezone() {
		s.Timezone = "" // the default time zone is not for this algorithm or unit
	}
	if !s.CanLease() { // neither are the default lease and the default lease_waste
		s.Lease = s.Lease && o.field("lease").given()
	}
	if !s.Lease && !o.field("lease_waste").given() {
		s.LeaseWaste = 0
	}
	return s
}

// checkUnlimited checks the fields beside unlimited: true. An unknown unit is allowed, as
// in envoyproxy/ratelimit.
func (d *document) checkUnlimited(pos *place, o *object) {
	for _, v := range o.fields {
		_, isUnit := limit.ParseUnit(v.text)
		switch {
		case v.invalid:
		case v.row.name == "unit" && isUnit, v.row.extension && v.row.name != "enabled":
			d.errorf(v.node, pos, "%s has no meaning beside unlimited: true", v.row.name)
		case v.row.name == "unit" && v.text != "":
			d.warnf(v.node, pos, "unit %s is unknown, and has no meaning beside unlimited: true", display(v.node))
		}
	}
}

// readReplaces reads the names of the limits that l replaces.
func (d *document) readReplaces(pos *place, o *object, l *Limit) {
	for _, item := range d.items(o.field("replaces"), pos) {
		switch name := d.object(replacesLevel, pos, item).field("name"); {
		case name.invalid:
		case name.text == "":
			d.errorf(name.node, pos, "an item of replaces needs the name of a limit")
		case name.text == l.Name:
			d.errorf(name.node, pos, "a limit can't replace itself (%s)", Printable(name.text))
		default:
			l.Replaces = append(l.Replaces, name.text)
		}
	}
}

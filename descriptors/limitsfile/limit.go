package limitsfile

import (
	"slices"
	"strings"

	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// readLimit reads a rate_limit. If it reports a problem, it returns nil.
func (d *document) readLimit(pos *place, o *object) *Limit {
	l := &Limit{Name: o.field("name").Text, Enabled: true, Line: o.node.Line}
	if v := o.fieldOrDefault(d.domain.defaults, "enabled"); v.isPresent() {
		l.Enabled = v.Flag
	}
	d.readReplaces(pos, o, l)
	oldErrorCount := d.errorCount
	if v := o.field("unlimited"); v.Flag || v.hasError {
		l.Unlimited = true
		d.checkUnlimited(pos, o)
	} else {
		l.Limit = d.newLimit(pos, o, d.readSpec(pos, o))
		d.checkLease(pos, o, l.Limit)
		if v := o.field("burst"); l.Limit != nil && v.isPresent() && v.Number > 0 && l.Requests == 0 {
			d.warnf(v.node, pos, "burst: got %d with requests_per_unit 0, which never refills the bucket, so no request passes; want requests_per_unit above 0, or no burst", v.Number)
		}
	}
	if d.errorCount > oldErrorCount || o.hasError() {
		return nil
	}
	if effectiveDefaults := l.fieldsFrom(d.domain.defaults); effectiveDefaults != 0 {
		l.defaultFields = effectiveDefaults &^ o.fieldSet()
	}
	return l
}

// newLimit returns the limit of spec. Equal specs share a limit. If newLimit reports a problem of o, it returns nil.
func (d *document) newLimit(pos *place, o *object, spec limit.Spec) *limit.Limit {
	if spec.Scope == limit.Global && !d.options.HasGlobalRedis {
		spec.Scope = limit.Region
	}
	if l := d.limits[spec]; l != nil {
		return l
	}
	if spec.Scope == limit.Global {
		if problem := spec.GlobalProblem(); problem != "" {
			v := o.fieldOrDefault(d.domain.defaults, "scope")
			d.errorf(v.node, pos, "scope: got global, but %s; want scope: region, or another limit", problem)
			return nil
		}
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

// checkLease warns if the lease of l has no effect. l can be nil.
func (d *document) checkLease(pos *place, o *object, l *limit.Limit) {
	v := o.field("lease")
	switch {
	case l == nil || !v.Flag:
	case d.options.StoreWithoutHolds != "":
		d.warnf(v.node, pos, "lease has no effect, because %s can't keep leases; remove lease, or count in Redis (BACKEND_TYPE=redis)", d.options.StoreWithoutHolds)
	case l.MaxLeasePermits() == 0:
		d.warnf(v.node, pos, "lease has no effect, because lease_waste %v of %d hits is fewer than %d permits", l.WasteShare(), l.Capacity(), limit.MinLeasePermits)
	}
}

// readSpec returns the spec of o. It leaves out invalid fields, because their problems are reported already. So limit.New
// reports only other problems.
func (d *document) readSpec(pos *place, o *object) limit.Spec {
	spec := d.domain.newSpec(o)
	if o.fieldOrDefault(d.domain.defaults, "algorithm").hasError {
		spec.Burst = 0
	}
	switch unit := o.field("unit"); {
	case unit.hasError:
	case spec.Algorithm.HasHolds():
	case unit.Text == "":
		d.errorf(unit.node, pos, "unit is missing; want %s", fields.OneOf("", limit.UnitNames()))
	default:
		d.checkUnit(pos, unit)
	}
	d.checkHolds(pos, o, spec)
	if spec.Unit == 0 {
		spec.Unit, spec.Multiplier = limit.Second, 1 // any valid window, because a missing unit is reported already
	}
	if !o.field("requests_per_unit").isPresent() {
		d.warnf(o.node, pos, "requests_per_unit is missing, so no request passes; write requests_per_unit: 0 if that is meant")
	}
	return spec
}

// checkHolds checks a limit with holds. It reports the fields of o that such a limit can't have. It also reports a shared
// limit if the StoreWithoutHolds would have to keep its holds.
func (d *document) checkHolds(pos *place, o *object, spec limit.Spec) {
	algorithm := spec.Algorithm
	if !algorithm.HasHolds() {
		return
	}
	if d.options.StoreWithoutHolds != "" && spec.Scope != limit.Instance {
		v := o.fieldOrDefault(d.domain.defaults, "algorithm")
		d.errorf(v.node, pos, "algorithm: got %s, but %s can't keep holds; want scope: instance, another algorithm, or counters in Redis (BACKEND_TYPE=redis)", algorithm, d.options.StoreWithoutHolds)
	}
	const noWindowReason = "which has no window; a hold ends when it is released, or after the time in the field hold, such as hold: 30s"
	for _, f := range [...]struct{ name, reason string }{
		{"unit", noWindowReason}, {"unit_multiplier", noWindowReason}, {"charge_denied", "because a denied request takes no slot"},
	} {
		if v := o.field(f.name); v.isPresent() {
			d.errorf(v.node, pos, "%s has no meaning with algorithm %s, %s; remove %s", f.name, algorithm, f.reason, f.name)
		}
	}
}

// rejectsReleases reports whether d has a limit with holds but rejects refunds, which release holds.
func (d *Descriptor) rejectsReleases() bool {
	return d.NoRefunds && d.HasHolds()
}

// HasHolds reports whether a limit of d has holds, even if it is off, because callers still release the holds that they have.
func (d *Descriptor) HasHolds() bool {
	return slices.ContainsFunc(d.Limits, func(l *Limit) bool { return !l.Unlimited && l.Algorithm.HasHolds() })
}

const refundsFalseReason = "refunds: false has no meaning with algorithm concurrency, because refunds release its holds; remove refunds"

func (d *document) checkUnit(pos *place, v value) {
	if _, ok := limit.ParseUnit(v.Text); !ok {
		d.errorf(v.node, pos, "unit: got %s, want %s", fields.Display(v.node), fields.OneOf(v.Text, limit.UnitNames()))
	}
}

// newSpec returns a spec with the fields of o, and the defaults of d for the fields that o lacks.
func (d *Domain) newSpec(o *object) limit.Spec {
	return d.WithCalendar(changeSpec(limit.Spec{ChargeDenied: limit.DefaultAlgorithm.DefaultChargeDenied()}, o, d.defaults))
}

// changeSpec returns s with the fields of o, and of defaults for the fields that o lacks. If the algorithm changes and s
// had the default charge_denied of the old algorithm, the result has the default of the new algorithm.
func changeSpec(s limit.Spec, o, defaults *object) limit.Spec {
	hasDefaultChargeDenied := s.ChargeDenied == s.Algorithm.DefaultChargeDenied()
	for _, object := range []*object{defaults, o} {
		for _, v := range object.allValues() {
			if setField := specSetters[v.schema.Name]; setField != nil {
				setField(&s, v)
			}
		}
	}
	if hasDefaultChargeDenied && !o.fieldOrDefault(defaults, "charge_denied").isPresent() {
		s.ChargeDenied = s.Algorithm.DefaultChargeDenied()
	}
	for _, f := range dependentFields {
		if !f.hasEffect(&s) && !o.field(f.name).isPresent() {
			f.clear(&s) // a default or an old value has no effect on this limit
		}
	}
	return s
}

// dependentFields are the fields of a limit that have an effect only with certain values of other fields. For example, burst
// has an effect only with an algorithm that uses bursts.
var dependentFields = []struct {
	name      string
	hasEffect func(*limit.Spec) bool
	clear     func(*limit.Spec)
}{
	{"charge_denied", func(s *limit.Spec) bool { return !s.Algorithm.HasHolds() }, func(s *limit.Spec) { s.ChargeDenied = false }},
	{"burst", func(s *limit.Spec) bool { return s.Algorithm.UsesBurst() }, func(s *limit.Spec) { s.Burst = 0 }},
	{"hold", func(s *limit.Spec) bool { return s.Algorithm.HasHolds() }, func(s *limit.Spec) { s.Hold = 0 }},
	{"timezone", (*limit.Spec).CanHaveTimezone, func(s *limit.Spec) { s.Timezone = "" }},
	{"lease", (*limit.Spec).CanLease, func(s *limit.Spec) { s.Lease = false }},
	{"lease_waste", func(s *limit.Spec) bool { return s.Lease }, func(s *limit.Spec) { s.LeaseWaste = 0 }},
}

// checkUnlimited checks the other fields of a limit with unlimited: true. An unknown unit is only a warning, because
// envoyproxy/ratelimit accepts such a unit.
func (d *document) checkUnlimited(pos *place, o *object) {
	for _, v := range o.values {
		_, isUnit := limit.ParseUnit(v.Text)
		switch {
		case v.hasError:
		case v.schema.Name == "unit" && isUnit, v.schema.isOnlyInRls && v.schema.Name != "enabled":
			d.errorf(v.node, pos, "%s has no meaning beside unlimited: true", v.schema.Name)
		case v.schema.Name == "unit" && v.Text != "":
			d.warnf(v.node, pos, "unit %s is unknown, and has no meaning beside unlimited: true", fields.Display(v.node))
		}
	}
}

func (d *document) readReplaces(pos *place, o *object, l *Limit) {
	for _, item := range d.readItems(o.field("replaces"), pos) {
		switch name := d.readObject(replacesObject, pos, item).field("name"); {
		case name.hasError:
		case name.Text == "":
			d.errorf(name.node, pos, "an item of replaces needs the name of a limit")
		case name.Text == l.Name:
			d.errorf(name.node, pos, "a limit can't replace itself (%s)", fields.Printable(name.Text))
		default:
			l.Replaces = append(l.Replaces, name.Text)
		}
	}
}

package limitsfile

import (
	"math/bits"

	"github.com/seed-81f232ab/rls/limit"
)

// fieldSet is a set of fields. Bit i stands for row i of the schema.
type fieldSet uint64

const _ = uint(64 - len(schema)) // a fieldSet has a bit for each row

// fieldSet returns the fields that o has.
func (o *object) fieldSet() fieldSet {
	var s fieldSet
	for _, v := range o.all() {
		s |= v.row.fieldSet()
	}
	return s
}

// fieldSet returns the set of this field alone.
func (r *row) fieldSet() fieldSet {
	for i := range schema {
		if schema[i].Name == r.Name {
			return 1 << i
		}
	}
	return 0
}

// names returns the names of the fields in the order of the schema.
func (s fieldSet) names() []string {
	var names []string
	for ; s != 0; s &= s - 1 {
		names = append(names, schema[bits.TrailingZeros64(uint64(s))].Name)
	}
	return names
}

// fieldsFrom returns the fields of o that have an effect on l.
func (l *Limit) fieldsFrom(o *object) fieldSet {
	s := o.fieldSet()
	if s == 0 {
		return 0
	}
	if l.Unlimited {
		s &= findRow("enabled").fieldSet()
		return s
	}
	return s &^ fieldsWithoutEffect(l.Spec)
}

// fieldsWithoutEffect returns the default fields that have no effect on a limit of this spec.
func fieldsWithoutEffect(spec limit.Spec) (s fieldSet) {
	if !spec.CanHaveTimezone() {
		s |= findRow("timezone").fieldSet()
	}
	if !spec.Algorithm.HasHolds() {
		s |= findRow("hold").fieldSet()
	} else {
		s |= findRow("charge_denied").fieldSet()
	}
	if !spec.Algorithm.UsesBurst() {
		s |= findRow("burst").fieldSet()
	}
	if !spec.CanLease() {
		s |= findRow("lease").fieldSet()
	}
	if !spec.Lease {
		s |= findRow("lease_waste").fieldSet()
	}
	return s
}

// DefaultFields returns the names of the fields that come from the defaults of the domain.
func (l *Limit) DefaultFields() []string {
	if l.Unlimited { // an override can have covered the other fields
		return (l.defaultFields & findRow("enabled").fieldSet()).names()
	}
	return l.defaultFields.names()
}

// OverrideFields returns the names of the fields that come from an override.
func (l *Limit) OverrideFields() []string { return l.overrideFields.names() }

// setOverrideFields records that an override has set the fields of o. A factor sets the
// numbers.
func (l *Limit) setOverrideFields(o *object) {
	s := o.fieldSet()
	if factor := findRow("factor").fieldSet(); s&factor != 0 {
		s = s&^factor | findRow("requests_per_unit").fieldSet()
		if !l.Unlimited && l.Burst != 0 {
			s |= findRow("burst").fieldSet()
		}
	}
	l.overrideFields |= s
	l.defaultFields &^= s
}

// DefaultsPlace returns the place of the defaults of d, or an empty file name if d has none.
func (d *Domain) DefaultsPlace() (file string, line int) {
	if d.defaults == nil {
		return "", 0
	}
	return d.defaultsFile, d.defaults.node.Line
}

// RequestLimitDefaults returns the names of the defaults for a limit that is part of a
// request.
func (d *Domain) RequestLimitDefaults() []string {
	spec, _ := d.RequestLimit()
	return (d.defaults.fieldSet() &^ fieldsWithoutEffect(spec)).names()
}

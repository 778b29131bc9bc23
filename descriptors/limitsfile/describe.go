package limitsfile

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// Summary returns the limits and flags of d: `100 per minute (named api) [shadow_mode]`.
func (d *Descriptor) Summary() string {
	var limits []string
	for _, l := range d.Limits {
		limits = append(limits, l.summary())
	}
	text := strings.Join(limits, " and ")
	if len(limits) == 0 && len(d.Descriptors) == 0 {
		text = "no limit"
	}
	conditionSummary := ""
	if d.Condition != nil {
		conditionSummary = d.Condition.List().Summary()
	}
	var flags []string
	for _, flag := range []struct {
		isShown bool
		name    string
	}{
		{d.ShadowMode, "shadow_mode"},
		{d.QuotaMode, "quota_mode"},
		{d.ShareThreshold, "share_threshold"},
		{d.ValueToMetric, "value_to_metric"},
		{d.DetailedMetric, "detailed_metric"},
		{d.Metadata != nil, "metadata"},
		{d.NoRefunds, "refunds: false"},
		{d.EnforcedPercent > 0, fmt.Sprintf("enforce: %v", d.EnforcedPercent)},
		{d.Denial != nil, "denial"},
		{conditionSummary != "", fields.Printable(conditionSummary)},
		{d.Quota != nil, "quota"},
		{d.MaxHits > 0, fmt.Sprintf("max_hits: %d", d.MaxHits)},
	} {
		if flag.isShown {
			flags = append(flags, flag.name)
		}
	}
	if len(flags) > 0 {
		text = strings.TrimSpace(text + " [" + strings.Join(flags, ", ") + "]")
	}
	return text
}

func (l *Limit) summary() string {
	text := "unlimited"
	if !l.Unlimited {
		text = l.Limit.String() + strings.Join(ExtraFields(l.Limit, ", %s %v"), "")
	}
	var notes []string
	if l.Name != "" {
		notes = append(notes, "named "+fields.Printable(l.Name))
	}
	for _, name := range l.Replaces {
		notes = append(notes, "replaces "+fields.Printable(name))
	}
	if !l.Enabled {
		notes = append(notes, "off")
	}
	if len(notes) > 0 {
		text += " (" + strings.Join(notes, ", ") + ")"
	}
	return text
}

// ExtraFields returns a text for each field of l that l.String leaves out. format is a format for the name and the value
// of the field, such as ", %s=%v".
func ExtraFields(l *limit.Limit, format string) []string {
	var texts []string
	for _, f := range []struct {
		name    string
		value   any
		isShown bool
	}{
		{"on_backend_failure", l.OnBackendFailure, l.OnBackendFailure != limit.FailDefault},
		{"fallback_ratio", l.FallbackRatio, l.FallbackRatio != 0},
		{"charge_denied", l.ChargeDenied, l.ChargeDenied != l.Algorithm.DefaultChargeDenied()},
		{"lease", l.Lease, l.Lease},
		{"lease_waste", l.LeaseWaste, l.LeaseWaste != 0},
	} {
		if f.isShown {
			texts = append(texts, fmt.Sprintf(format, f.name, f.value))
		}
	}
	return texts
}

// fieldSet is a set of fields. Bit i is set if the set has the field schema[i].
type fieldSet uint64

const _ = uint(64 - len(schema)) // a fieldSet needs a bit for each field of the schema

func (o *object) fieldSet() (s fieldSet) {
	for _, v := range o.allValues() {
		s |= fieldSetOf(v.schema.Name)
	}
	return s
}

func fieldSetOf(names ...string) (s fieldSet) {
	for i := range schema {
		if slices.Contains(names, schema[i].Name) {
			s |= 1 << i
		}
	}
	return s
}

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
	switch {
	case s == 0:
		return 0
	case l.Unlimited:
		return s & fieldSetOf("enabled")
	}
	return s &^ fieldsWithoutEffect(l.Spec)
}

func fieldsWithoutEffect(spec limit.Spec) fieldSet {
	var names []string
	for _, f := range dependentFields {
		if !f.hasEffect(&spec) {
			names = append(names, f.name)
		}
	}
	return fieldSetOf(names...)
}

// DefaultFields returns the names of the fields that come from the defaults of the domain.
func (l *Limit) DefaultFields() []string {
	if l.Unlimited { // the other defaults have no effect
		return (l.defaultFields & fieldSetOf("enabled")).names()
	}
	return l.defaultFields.names()
}

// OverrideFields returns the names of the fields that come from an override.
func (l *Limit) OverrideFields() []string { return l.overrideFields.names() }

// setOverrideFields records in l which fields the override o has set. The field factor changes requests_per_unit and burst,
// so l gets these two fields in its place.
func (l *Limit) setOverrideFields(o *object) {
	s := o.fieldSet()
	if factor := fieldSetOf("factor"); s&factor != 0 {
		s = s&^factor | fieldSetOf("requests_per_unit")
		if !l.Unlimited && l.Burst != 0 {
			s |= fieldSetOf("burst")
		}
	}
	l.overrideFields |= s
	l.defaultFields &^= s
}

// DefaultsPlace returns the place of the defaults of d. Without defaults, file is empty.
func (d *Domain) DefaultsPlace() (file string, line int) {
	if d.defaults == nil {
		return "", 0
	}
	return d.defaultsFile, d.defaults.node.Line
}

// RequestLimitDefaults returns the names of the defaults that have an effect on limits in requests.
func (d *Domain) RequestLimitDefaults() []string {
	spec, _ := d.RequestLimit()
	return (d.defaults.fieldSet() &^ fieldsWithoutEffect(spec)).names()
}

package limitsfile

import (
	"fmt"
	"strings"

	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// Summary returns the limits and flags of d in words:
// `100 per minute (named api) [shadow_mode]`.
func (d *Descriptor) Summary() string {
	var limits []string
	for _, l := range d.Limits {
		limits = append(limits, l.summary())
	}
	text := strings.Join(limits, " and ")
	if len(limits) == 0 && len(d.Descriptors) == 0 {
		text = "no limit"
	}
	var flags []string
	for _, f := range []struct {
		on   bool
		name string
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
	} {
		if f.on {
			flags = append(flags, f.name)
		}
	}
	if d.Condition != nil && d.Condition.List() != nil {
		if summary := d.Condition.List().Summary(); summary != "" {
			flags = append(flags, fields.Printable(summary))
		}
	}
	if d.MaxHits > 0 {
		flags = append(flags, fmt.Sprintf("max_hits: %d", d.MaxHits))
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

// ExtraFields returns the fields of l that differ from their defaults and that
// l.String leaves out. Each is written in form, which takes a name and a value.
func ExtraFields(l *limit.Limit, form string) []string {
	var all []string
	add := func(name string, value any) { all = append(all, fmt.Sprintf(form, name, value)) }
	if l.OnBackendFailure != limit.FailDefault {
		add("on_backend_failure", l.OnBackendFailure)
	}
	if l.FallbackRatio != 0 {
		add("fallback_ratio", l.FallbackRatio)
	}
	if l.ChargeDenied != l.Algorithm.DefaultChargeDenied() {
		add("charge_denied", l.ChargeDenied)
	}
	if l.Lease {
		add("lease", l.Lease)
	}
	if l.LeaseWaste != 0 {
		add("lease_waste", l.LeaseWaste)
	}
	return all
}

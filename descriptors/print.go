package descriptors

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/seed-81f232ab/rls/limit"
)

// WriteTree writes the limits as a tree for people to read: domains by name,
// descriptors in file order, those that are off as well.
func (c *Config) WriteTree(w io.Writer) error {
	b := bufio.NewWriter(w)
	for _, d := range c.Domains() {
		fmt.Fprintln(b, printable(d.Name))
		d.root.writeTree(b, "  ")
	}
	return b.Flush()
}

func (t *tier) writeTree(b *bufio.Writer, indent string) {
	for _, n := range t.nodes {
		b.WriteString(indent + n.label())
		if text := n.describe(); text != "" {
			b.WriteString(": " + text)
		}
		b.WriteByte('\n')
		if n.children != nil && !n.borrows {
			n.children.writeTree(b, indent+"  ")
		}
	}
}

// describe is the limits of n and what goes for them.
func (n *node) describe() string {
	var limits []string
	for _, l := range n.limits {
		limits = append(limits, l.describe())
	}
	text := strings.Join(limits, " and ")
	if len(limits) == 0 && n.children == nil {
		text = "no limit"
	}
	var flags []string
	for _, f := range []struct {
		on   bool
		name string
	}{
		{n.shadowMode, "shadow_mode"},
		{n.quotaMode, "quota_mode"},
		{n.share, "share_threshold"},
		{n.valueToMetric, "value_to_metric"},
		{n.detailedMetric, "detailed_metric"},
		{n.metadata != nil, "metadata"},
	} {
		if f.on {
			flags = append(flags, f.name)
		}
	}
	if len(flags) > 0 {
		text = strings.TrimSpace(text + " [" + strings.Join(flags, ", ") + "]")
	}
	return text
}

func (l *stated) describe() string {
	text := "unlimited"
	if !l.Unlimited {
		text = l.Limit.String() + strings.Join(extras(l.Limit, ", %s %v"), "")
	}
	var notes []string
	if l.Name != "" {
		notes = append(notes, "named "+printable(l.Name))
	}
	for _, name := range l.Replaces {
		notes = append(notes, "replaces "+printable(name))
	}
	if !l.enabled {
		notes = append(notes, "off")
	}
	if len(notes) > 0 {
		text += " (" + strings.Join(notes, ", ") + ")"
	}
	return text
}

// extras are the fields of l that only an own setting gives, each in the form of
// a name and a value.
func extras(l *limit.Limit, form string) []string {
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
	return all
}

// WriteLines writes the limits in force in file order, one a line, as
// envoyproxy/ratelimit's /rlconfig does; what it doesn't know comes last.
func (c *Config) WriteLines(w io.Writer) error {
	b := bufio.NewWriter(w)
	for _, d := range c.order {
		d.root.writeLines(b)
	}
	return b.Flush()
}

func (t *tier) writeLines(b *bufio.Writer) {
	for _, n := range t.nodes {
		if n.rule != nil {
			for _, l := range n.rule.Limits {
				n.rule.writeLine(b, l)
			}
		}
		if n.children != nil && !n.borrows {
			n.children.writeLines(b)
		}
	}
}

func (r *Rule) writeLine(b *bufio.Writer, l *RateLimit) {
	unit := "UNKNOWN"
	if !l.Unlimited {
		unit = strings.ToUpper(l.Unit.String())
	}
	fmt.Fprintf(b, "%s: unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t",
		printable(r.MetricKey), unit, l.Response.GetRequestsPerUnit(), r.ShadowMode, r.QuotaMode)
	if l.Unlimited {
		b.WriteString(", unlimited=true\n")
		return
	}
	add := func(name string, value any) { fmt.Fprintf(b, ", %s=%v", name, value) }
	if l.Algorithm != limit.DefaultAlgorithm {
		add("algorithm", l.Algorithm)
	}
	if l.Multiplier != 1 {
		add("unit_multiplier", l.Multiplier)
	}
	if l.Burst != 0 {
		add("burst", l.Burst)
	}
	if l.Scope != limit.Global {
		add("scope", l.Scope)
	}
	b.WriteString(strings.Join(extras(l.Limit, ", %s=%v"), ""))
	b.WriteByte('\n')
}

package descriptors

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// WriteTree writes the limits as a tree for people: domains by name, descriptors in
// file order, with limits that are off.
func (c *Config) WriteTree(w io.Writer) error {
	b := bufio.NewWriter(w)
	if c.shadowMode != nil {
		fmt.Fprintln(b, "SHADOW_MODE:", c.shadowMode.On)
	}
	for _, d := range c.Domains() {
		name := fields.Printable(d.Name)
		if d.source.Off != nil {
			name += " (off)"
		}
		fmt.Fprintln(b, name)
		d.root.eachPair(nil, path{domain: d.Name}, func(n, _ *node, p path) {
			b.WriteString(strings.Repeat("  ", len(p.trail)) + n.Label())
			if text := n.Summary(); text != "" {
				b.WriteString(": " + text)
			}
			b.WriteByte('\n')
		})
	}
	return b.Flush()
}

// WriteLines writes all limits in file order, one a line, like /rlconfig of
// envoyproxy/ratelimit. Fields that envoyproxy/ratelimit doesn't know come last. They show limits
// that are off, and changes of run time.
func (c *Config) WriteLines(w io.Writer) error {
	b := bufio.NewWriter(w)
	if s := c.shadowMode; s != nil {
		fmt.Fprintf(b, "# SHADOW_MODE is %t%s\n", s.On, s.Notes)
	}
	for _, off := range c.Off() {
		fmt.Fprintf(b, "# off: %s%s\n", off.Path, off.Notes)
	}
	c.eachPair(nil, func(n, _ *node, p path) {
		var inForce []*RateLimit // that have no line yet
		rule := n.rule
		if rule == nil {
			rule = &Rule{RuleFields: n.RuleFields}
		} else {
			inForce = rule.Limits
		}
		more := origin(c.domains[p.domain].source, n.Descriptor)
		for _, fileLimit := range n.Limits {
			if fileLimit.Enabled && len(inForce) > 0 {
				rule.writeLine(b, p.metricKey(), inForce[0], more)
				inForce = inForce[1:]
				continue
			}
			rule.writeLine(b, p.metricKey(), responses{}.newRateLimit(fileLimit, nil), ", enabled=false"+more)
		}
	})
	return b.Flush()
}

// writeLine writes l, a limit of r. more are fields at the end of the line.
func (r *Rule) writeLine(b *bufio.Writer, metricKey string, l *RateLimit, more string) {
	unit := "UNKNOWN"
	if !l.Unlimited && l.Unit != 0 {
		unit = strings.ToUpper(l.Unit.String())
	}
	fmt.Fprintf(b, "%s: unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t",
		fields.Printable(metricKey), unit, l.Response.GetRequestsPerUnit(), r.ShadowMode, r.QuotaMode)
	if l.Unlimited {
		b.WriteString(", unlimited=true" + more + "\n")
		return
	}
	add := func(name string, value any) { fmt.Fprintf(b, ", %s=%v", name, value) }
	if percent := r.EnforcedPercent(); percent < 100 {
		add("enforce", percent)
	}
	if l.Algorithm != limit.DefaultAlgorithm {
		add("algorithm", l.Algorithm)
	}
	if l.Multiplier > 1 {
		add("unit_multiplier", l.Multiplier)
	}
	if l.Hold != 0 {
		add("hold", limit.DurationText(l.Hold))
	}
	if l.Timezone != "" {
		add("timezone", l.Timezone)
	}
	if l.Burst != 0 {
		add("burst", l.Burst)
	}
	if l.Scope != limit.Global {
		add("scope", l.Scope)
	}
	b.WriteString(strings.Join(limitsfile.ExtraFields(l.Limit, ", %s=%v"), ""))
	b.WriteString(more)
	b.WriteByte('\n')
}

// metricKey returns the path as envoyproxy/ratelimit writes it: `shop.service_checkout`.
func (p path) metricKey() string {
	text := p.domain
	for _, d := range p.trail {
		text += "." + d.Key
		if d.Value != "" {
			text += "_" + d.Value
		}
	}
	return text
}

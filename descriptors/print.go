package descriptors

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
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
		name := limitsfile.Printable(d.Name)
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

// WriteLines writes the limits in force in file order, one a line, like /rlconfig of
// envoyproxy/ratelimit. Fields that envoyproxy/ratelimit doesn't know come last.
func (c *Config) WriteLines(w io.Writer) error {
	b := bufio.NewWriter(w)
	c.eachPair(nil, func(n, _ *node, p path) {
		if n.rule == nil {
			return
		}
		for _, l := range n.rule.Limits {
			n.rule.writeLine(b, p.metricKey(), l)
		}
	})
	return b.Flush()
}

// writeLine writes l, a limit of r.
func (r *Rule) writeLine(b *bufio.Writer, metricKey string, l *RateLimit) {
	unit := "UNKNOWN"
	if !l.Unlimited {
		unit = strings.ToUpper(l.Unit.String())
	}
	fmt.Fprintf(b, "%s: unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t",
		limitsfile.Printable(metricKey), unit, l.Response.GetRequestsPerUnit(), r.ShadowMode, r.QuotaMode)
	if l.Unlimited {
		b.WriteString(", unlimited=true\n")
		return
	}
	add := func(name string, value any) { fmt.Fprintf(b, ", %s=%v", name, value) }
	if percent := r.EnforcedPercent(); percent < 100 {
		add("enforce", percent)
	}
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
	b.WriteString(strings.Join(limitsfile.ExtraFields(l.Limit, ", %s=%v"), ""))
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

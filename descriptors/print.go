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

// WriteTree writes all limits as a tree for people. The tree also has the limits that are off.
func (c *Config) WriteTree(w io.Writer) error {
	b := bufio.NewWriter(w)
	if c.ShadowMode != nil {
		fmt.Fprintln(b, "SHADOW_MODE:", c.ShadowMode.IsOn)
	}
	for _, d := range c.Domains() {
		name := fields.Printable(d.Name)
		if d.Source.OffSwitch != nil {
			name += " (off)"
		}
		fmt.Fprintln(b, name)
		d.root.forEachPair(nil, path{domain: d.Name}, func(n, _ *node, p path) {
			b.WriteString(strings.Repeat("  ", len(p.trail)) + n.Label())
			if text := n.Summary(); text != "" {
				b.WriteString(": " + text)
			}
			b.WriteByte('\n')
		})
	}
	return b.Flush()
}

// WriteLines writes a line for each limit, in file order. The lines have the form of /rlconfig of envoyproxy/ratelimit.
func (c *Config) WriteLines(w io.Writer) error {
	b := bufio.NewWriter(w)
	if s := c.ShadowMode; s != nil {
		fmt.Fprintf(b, "# SHADOW_MODE is %t%s\n", s.IsOn, s.Notes)
	}
	for _, offSwitch := range c.OffSwitches() {
		fmt.Fprintf(b, "# off: %s%s\n", offSwitch.Path, offSwitch.Notes)
	}
	c.forEachPair(nil, func(n, _ *node, p path) {
		changes := runtimeChanges(c.domains[p.domain].Source, n.Descriptor)
		for _, l := range n.Limits {
			state := ""
			if !l.Enabled || n.rule == nil {
				state = ", enabled=false"
			}
			n.writeLine(b, p.metricKey(), l, state+changes)
		}
	})
	return b.Flush()
}

func (n *node) writeLine(b *bufio.Writer, metricKey string, l *limitsfile.Limit, suffix string) {
	unit, requests := "UNKNOWN", uint32(0)
	if !l.Unlimited {
		requests = l.Requests
		if l.Unit != 0 {
			unit = strings.ToUpper(l.Unit.String())
		}
	}
	fmt.Fprintf(b, "%s: unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t",
		fields.Printable(metricKey), unit, requests, n.ShadowMode, n.QuotaMode)
	if l.Unlimited {
		b.WriteString(", unlimited=true" + suffix + "\n")
		return
	}
	percent := newEnforcement(n.EnforcedPercent).percent
	for _, f := range []struct {
		name    string
		value   any
		isShown bool
	}{
		{"enforce", percent, percent != 0},
		{"algorithm", l.Algorithm, l.Algorithm != limit.DefaultAlgorithm},
		{"unit_multiplier", l.Multiplier, l.Multiplier > 1},
		{"hold", limit.DurationText(l.Hold), l.Hold != 0},
		{"timezone", l.Timezone, l.Timezone != ""},
		{"burst", l.Burst, l.Burst != 0},
		{"scope", l.Scope, l.Scope != limit.Region},
	} {
		if f.isShown {
			fmt.Fprintf(b, ", %s=%v", f.name, f.value)
		}
	}
	b.WriteString(strings.Join(limitsfile.ExtraFields(l.Limit, ", %s=%v"), "") + suffix + "\n")
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

package descriptors

import (
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// OffSwitch describes the limits that a switch has taken out of force.
type OffSwitch struct {
	Path string // of a rule or a domain, or "all domains"
	limitsfile.Notes
}

const allDomains = "all domains"

// OffSwitches returns the switches in force: first for all domains, then for domains, then for rules.
func (c *Config) OffSwitches() []OffSwitch {
	var switches []OffSwitch
	for _, d := range c.domainsInFileOrder {
		switch off := d.offSwitch(); {
		case off == nil:
		case off.Path == allDomains:
			return []OffSwitch{*off}
		default:
			switches = append(switches, *off)
		}
	}
	c.eachPair(nil, func(n, _ *node, _ path) {
		if n.offSwitch != nil {
			switches = append(switches, *n.offSwitch)
		}
	})
	return switches
}

// HasOffSwitch reports whether a switch has taken limits out of force.
func (c *Config) HasOffSwitch() bool { return c.hasOffSwitch }

// off returns the switch that has taken all limits of d out of force, or nil.
func (d *Domain) offSwitch() *OffSwitch {
	switch off := d.source.OffSwitch; {
	case off == nil:
		return nil
	case off.Target == "":
		return &OffSwitch{allDomains, off.Notes}
	default:
		return &OffSwitch{fields.Printable(d.Name), off.Notes}
	}
}

// OffSwitchAt returns the switch that has taken the limits for entries out of force, or nil.
func (d *Domain) OffSwitchAt(entries []*ratelimitv3.RateLimitDescriptor_Entry) *OffSwitch {
	if off := d.offSwitch(); off != nil {
		return off
	}
	l := lookup{}
	if n := d.find(&l, entries); n != nil && !l.isDenied {
		return n.offSwitch
	}
	return nil
}

// origin returns the changes of run time that made d, as fields of a line of /rlconfig.
func origin(domain *limitsfile.Domain, d *limitsfile.Descriptor) string {
	text := ""
	addChange := func(name, cause string, n limitsfile.Notes) {
		text += ", " + name + "=" + fields.Printable(strings.TrimSpace(cause+n.String()))
	}
	if d.Created != nil {
		addChange("created", "at run time", *d.Created)
	}
	for _, o := range d.Overrides {
		name := "override"
		if o.IsSwitch {
			name = "off"
		}
		addChange(name, o.Target, o.Notes)
	}
	if domain.OffSwitch != nil {
		addChange("off", "domain", domain.OffSwitch.Notes)
	}
	return text
}

package descriptors

import (
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// OffSwitch is a switch that has turned off limits.
type OffSwitch struct {
	Path string // the path of a rule or of a domain, or "all domains"
	limitsfile.Notes
}

const allDomains = "all domains"

// OffSwitches returns the switches in force. If all domains are switched off, it returns only this switch. Otherwise it
// returns the switches of domains, and then the switches of rules.
func (c *Config) OffSwitches() []OffSwitch {
	var switches []OffSwitch
	for _, d := range c.domainsInFileOrder {
		switch s := d.offSwitch(); {
		case s == nil:
		case s.Path == allDomains:
			return []OffSwitch{*s}
		default:
			switches = append(switches, *s)
		}
	}
	c.forEachPair(nil, func(n, _ *node, _ path) {
		if n.offSwitch != nil {
			switches = append(switches, *n.offSwitch)
		}
	})
	return switches
}

func (d *Domain) offSwitch() *OffSwitch {
	switch s := d.Source.OffSwitch; {
	case s == nil:
		return nil
	case s.Target == "":
		return &OffSwitch{allDomains, s.Notes}
	default:
		return &OffSwitch{fields.Printable(d.Name), s.Notes}
	}
}

// OffSwitchFor returns the switch that has turned off the limits for entries, or nil.
func (d *Domain) OffSwitchFor(entries []*ratelimitv3.RateLimitDescriptor_Entry) *OffSwitch {
	if s := d.offSwitch(); s != nil {
		return s
	}
	l := lookup{}
	if n := d.find(&l, entries); n != nil && !l.isDenied {
		return n.offSwitch
	}
	return nil
}

// runtimeChanges returns the changes at run time that made d, in the form of /rlconfig: `, override=shop|tenant by alice`.
func runtimeChanges(domain *limitsfile.Domain, d *limitsfile.Descriptor) string {
	text := ""
	addChange := func(name, cause string, n limitsfile.Notes) {
		text += ", " + name + "=" + fields.Printable(strings.TrimSpace(cause+n.String()))
	}
	if d.CreationNotes != nil {
		addChange("created", "at run time", *d.CreationNotes)
	}
	for _, override := range d.Overrides {
		name := "override"
		if override.IsSwitch {
			name = "off"
		}
		addChange(name, override.Target, override.Notes)
	}
	if domain.OffSwitch != nil {
		addChange("off", "domain", domain.OffSwitch.Notes)
	}
	return text
}

package descriptors

import (
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// Off is limits that a switch has taken out of force.
type Off struct {
	Path string // of a rule or a domain, or "all domains"
	limitsfile.Notes
}

const allDomains = "all domains"

// Off returns the limits that switches have taken out of force: of all domains, of domains, then of rules.
func (c *Config) Off() []Off {
	var all []Off
	for _, d := range c.order {
		switch off := d.off(); {
		case off == nil:
		case off.Path == allDomains:
			return []Off{*off}
		default:
			all = append(all, *off)
		}
	}
	c.eachPair(nil, func(n, _ *node, _ path) {
		if n.off != nil {
			all = append(all, *n.off)
		}
	})
	return all
}

// HasOff reports whether a switch has taken limits out of force.
func (c *Config) HasOff() bool { return c.hasOff }

// off returns the switch that has taken all limits of d out of force, or nil.
func (d *Domain) off() *Off {
	switch off := d.source.Off; {
	case off == nil:
		return nil
	case off.Target == "":
		return &Off{allDomains, off.Notes}
	default:
		return &Off{fields.Printable(d.Name), off.Notes}
	}
}

// OffAt returns the switch that has taken the limits for entries out of force, or nil.
func (d *Domain) OffAt(entries []*ratelimitv3.RateLimitDescriptor_Entry) *Off {
	if off := d.off(); off != nil {
		return off
	}
	l := lookup{}
	if n := d.find(&l, entries); n != nil && !l.isDenied {
		return n.off
	}
	return nil
}

// origin returns the changes of run time that made d, as fields of a line of /rlconfig.
func origin(domain *limitsfile.Domain, d *limitsfile.Descriptor) string {
	text := ""
	add := func(name, detail string, n limitsfile.Notes) {
		text += ", " + name + "=" + fields.Printable(strings.TrimSpace(detail+n.String()))
	}
	if d.Created != nil {
		add("created", "at run time", *d.Created)
	}
	for _, o := range d.Overrides {
		name := "override"
		if o.Off {
			name = "off"
		}
		add(name, o.Target, o.Notes)
	}
	if domain.Off != nil {
		add("off", "domain", domain.Off.Notes)
	}
	return text
}

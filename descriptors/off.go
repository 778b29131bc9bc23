package descriptors

import (
	"strings"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// Off is limits that a switch has taken out of force.
type Off struct {
	Path string // of a rule or a domain, or "all domains"
	limitsfile.Notes
}

// Off returns the limits that switches have taken out of force: all domains, then each domain
// with its own switch, then rules.
func (c *Config) Off() []Off {
	var all []Off
	for _, d := range c.order {
		off := d.source.Off
		switch {
		case off == nil:
		case off.Target == "":
			return []Off{{"all domains", off.Notes}}
		default:
			all = append(all, Off{limitsfile.Printable(d.Name), off.Notes})
		}
	}
	c.EachDescriptor(func(domain string, trail []*limitsfile.Descriptor) {
		if o := trail[len(trail)-1].Off(); o != nil {
			all = append(all, Off{limitsfile.Path(domain, trail), o.Notes})
		}
	})
	return all
}

// origin returns where the limits of d come from, if not from a file alone, as fields of a line
// of /rlconfig.
func origin(domain *limitsfile.Domain, d *limitsfile.Descriptor) string {
	text := ""
	add := func(name, detail string, n limitsfile.Notes) {
		text += ", " + name + "=" + limitsfile.Printable(strings.TrimSpace(detail+n.String()))
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

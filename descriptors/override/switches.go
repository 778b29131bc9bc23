package override

import (
	"fmt"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// applySwitches applies the switches of domains, of all domains, and of SHADOW_MODE to set,
// which build has made.
func applySwitches(set *limitsfile.Set, overrides []*Override, outcomes []outcome) {
	for i, o := range overrides {
		out := &outcomes[i]
		switch {
		case o.Kind == KindShadowMode:
			set.ShadowMode = &limitsfile.ShadowMode{On: o.shadowMode, Notes: o.Notes}
			out.path, out.baseLimits, out.limits, out.countersKept = "SHADOW_MODE", "the setting", fmt.Sprint(o.shadowMode), true
		case o.Kind == KindSwitch && len(o.Target.Entries) == 0:
			switchOff(set, o, out)
		}
	}
}

// switchOff takes the limits of a domain, or of all, out of force. The switch of all domains
// comes first in overrides, so the switch of a domain does not replace it.
func switchOff(set *limitsfile.Set, o *Override, out *outcome) {
	rules, found := 0, false
	var names []string
	for _, d := range set.Domains {
		names = append(names, d.Name)
		if o.Target.Domain != "" && o.Target.Domain != d.Name {
			continue
		}
		found = true
		rules += rulesIn(d.Descriptors)
		if d.Off == nil {
			d.Off = &limitsfile.AppliedOverride{Target: o.Target.String(), Notes: o.Notes, Off: true}
		}
	}
	if !found && o.Target.Domain != "" {
		out.problems, out.isWaiting = fields.Problems{o.problem("", "%s", unknownDomain(o.Target.Domain, names))}, true
		return
	}
	out.path = "all domains"
	if o.Target.Domain != "" {
		out.path = fields.Printable(o.Target.Domain)
	}
	out.baseLimits, out.limits, out.countersKept = fmt.Sprintf("%d rules", rules), "off", true
}

// rulesIn returns the number of descriptors with limits in list and below.
func rulesIn(list []*limitsfile.Descriptor) int {
	n := 0
	for _, d := range list {
		if len(d.Limits) > 0 {
			n++
		}
		n += rulesIn(d.Descriptors)
	}
	return n
}

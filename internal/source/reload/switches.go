package reload

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-81f232ab/rls/descriptors/override"
)

// overrideCounts counts the overrides, rules and switches.
func (r *Reloader) overrideCounts() OverrideCounts {
	var c OverrideCounts
	for _, s := range r.overrides.States() {
		isInForce := s.Limits != ""
		switch {
		case s.Waiting:
			c.Waiting++
		case s.Problem != nil:
			c.Rejected++
		}
		if !isInForce {
			continue
		}
		c.InForce++
		switch {
		case s.Kind != override.KindSwitch:
		case s.Target == "":
			c.OffAll++
		case override.IsDomain(s.Target):
			c.OffDomains++
		default:
			c.OffRules++
		}
	}
	return c
}

// logSwitches logs each switch that came into force or ended. The start of the process counts
// too, because an operator must see in the log of a new replica that limits are off.
func (r *Reloader) logSwitches() {
	inForce := map[string]string{}
	for _, s := range r.overrides.States() {
		if s.Kind != override.KindSwitch && s.Kind != override.KindShadowMode || s.Limits == "" {
			continue
		}
		field := s.Field()
		inForce[field] = s.Value
		if r.loggedSwitches[field] == s.Value {
			continue
		}
		attrs := []any{"limits", s.Path, "by", s.Author, "reason", s.Reason}
		if !s.Expires.IsZero() {
			attrs = append(attrs, "until", s.Expires.UTC().Format(time.RFC3339))
		}
		if s.Kind == override.KindShadowMode {
			r.log.Warn("shadow mode switched", append(attrs, "value", s.Limits)...)
		} else {
			r.log.Warn("limits switched off", attrs...)
		}
	}
	for _, field := range slices.Sorted(maps.Keys(r.loggedSwitches)) {
		if _, ok := inForce[field]; ok {
			continue
		}
		if kind, target := override.SplitField(field); kind == override.KindShadowMode {
			r.log.Warn("shadow mode restored to the setting")
		} else {
			if target == "" {
				target = "all domains"
			}
			r.log.Warn("limits switched on", "limits", target)
		}
	}
	r.loggedSwitches = inForce
}

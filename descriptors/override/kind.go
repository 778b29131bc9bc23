package override

import "strings"

// Kind is the kind of a change of limits at run time.
type Kind string

// The kinds.
const (
	KindOverride   Kind = "override"
	KindRule       Kind = "rule"
	KindSwitch     Kind = "switch"      // takes a rule, a domain or all limits out of force
	KindShadowMode Kind = "shadow_mode" // replaces SHADOW_MODE
)

// noun returns the kind in messages.
func (k Kind) noun() string { return strings.ReplaceAll(string(k), "_", " ") }

// IsDomain reports whether the target of a switch is a whole domain.
func IsDomain(target string) bool { return target != "" && !strings.Contains(target, "|") }

// Field returns the name of a field in Redis. The field of an override is its target. No target
// of an override starts with |.
func Field(k Kind, target string) string {
	if k == KindOverride {
		return target
	}
	return "|" + string(k) + "|" + target
}

// SplitField returns the kind and the target of a field.
func SplitField(field string) (k Kind, target string) {
	for _, k := range []Kind{KindRule, KindSwitch, KindShadowMode} {
		if target, ok := strings.CutPrefix(field, Field(k, "")); ok {
			return k, target
		}
	}
	return KindOverride, field
}

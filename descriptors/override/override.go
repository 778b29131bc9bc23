// Package override changes limits at run time. It parses overrides, rules and switches, keeps the last good value of
// each of them, and applies the values to a set of limits files.
//
// Terms that are not in the glossary:
//
// - field: the name under which Redis keeps an override, a rule or a switch, such as `|rule|shop|tenant`;
// - copy: a copy of a descriptor that an override made for a single value.
package override

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// MaxBytes is the maximum size of the value of an override.
const MaxBytes = limitsfile.MaxPatchBytes

// Override is a parsed override, rule or switch. It is immutable.
type Override struct {
	Kind Kind

	// Target has no entries for a switch of a domain, and no domain for a switch of all domains.
	Target descriptors.Target

	limitsfile.Notes

	*limitsfile.Patch                         // the change that an override, or the switch of a rule, makes; otherwise nil
	rule              *limitsfile.RuntimeRule // the rule if Kind is KindRule; otherwise nil
	shadowMode        bool                    // the value of the switch that replaces SHADOW_MODE
	isNew             bool                    // the rule is not stored in Redis yet; only DryRun sets isNew
}

// Parse reads the value of a field. The error is fields.Problems.
func Parse(field string, value []byte) (*Override, error) {
	kind, target := SplitField(field)
	o := &Override{Kind: kind}
	var problems, contentProblems fields.Problems
	var err error
	if o.Target, err = parseTarget(kind, target); err != nil {
		problems = append(problems, limitsfile.TargetProblem(kind.noun(), target, "", err.Error()))
	}
	switch kind {
	case KindRule:
		if o.rule, err = limitsfile.ParseRule(target, value); err == nil {
			o.Notes = o.rule.Notes
		}
	case KindSwitch:
		name := strings.TrimSpace("switch " + fields.Printable(target))
		if o.Notes, err = limitsfile.ParseSwitch(name, value); err == nil && len(o.Target.Entries) > 0 {
			o.Patch, err = limitsfile.ParsePatch(target, []byte(`{"enabled": false}`))
		}
	case KindShadowMode:
		o.shadowMode, o.Notes, err = limitsfile.ParseShadowMode("shadow mode", value)
	default:
		if o.Patch, err = limitsfile.ParsePatch(target, value); err == nil {
			o.Notes = o.Patch.Notes
		}
	}
	if errors.As(err, &contentProblems) {
		problems = append(problems, contentProblems...)
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return o, nil
}

// parseTarget parses the target of a change of this kind. The target of KindShadowMode is empty. The target of KindSwitch
// can be empty or a domain. Other targets have entries.
func parseTarget(kind Kind, target string) (descriptors.Target, error) {
	switch {
	case kind == KindShadowMode && target == "", kind == KindSwitch && target == "":
		return descriptors.Target{}, nil
	case kind == KindShadowMode:
		return descriptors.Target{}, fmt.Errorf("target: got %s, want no target", fields.Printable(target))
	case kind == KindSwitch && !strings.Contains(target, "|"):
		const entry = "|key"
		t, err := descriptors.ParseTarget(target + entry)
		if err != nil {
			return t, fmt.Errorf("target: got %s, want a domain, DOMAIN|KEY=VALUE…, or nothing for all domains", fields.Printable(target))
		}
		t.Entries = nil
		return t, nil
	}
	return descriptors.ParseTarget(target)
}

// NotesOf returns the notes in value. If value is not JSON, the notes are empty.
func NotesOf(value string) (n limitsfile.Notes) {
	_ = json.Unmarshal([]byte(value), &n)
	return n
}

// AddAuthor returns value as JSON with the author and the time of the change. value must be the valid value of a field.
func AddAuthor(value, author string, setAt time.Time) string {
	if !strings.HasPrefix(value, "{") {
		value = fmt.Sprintf(`{"requests_per_unit": %s}`, value)
	}
	var values map[string]json.RawMessage
	if json.Unmarshal([]byte(value), &values) != nil {
		return value
	}
	oldCount := len(values)
	delete(values, "set_by")
	delete(values, "set_at")
	if len(values) < oldCount {
		otherValues, _ := json.Marshal(values)
		value = string(otherValues)
	}
	suffix := authorSuffix(author, setAt)
	if len(values) == 0 {
		return "{" + strings.TrimPrefix(suffix, ", ")
	}
	return strings.TrimSuffix(strings.TrimSpace(value), "}") + suffix
}

// RemoveAuthor returns value without the fields that AddAuthor has added.
func RemoveAuthor(value string) string {
	notes := NotesOf(value)
	suffix := authorSuffix(notes.Author, notes.SetAt)
	if start, ok := strings.CutSuffix(value, suffix); ok {
		return start + "}"
	}
	if value == "{"+strings.TrimPrefix(suffix, ", ") {
		return "{}"
	}
	return value
}

// authorSuffix returns the end of the JSON of AddAuthor: the fields set_by and set_at, and the closing bracket.
func authorSuffix(author string, setAt time.Time) string {
	name, _ := json.Marshal(author)
	return fmt.Sprintf(`, "set_by": %s, "set_at": "%s"}`, name, setAt.UTC().Format(time.RFC3339))
}

// Kind is the kind of a change of limits at run time.
type Kind string

// The kinds.
const (
	KindOverride   Kind = "override"
	KindRule       Kind = "rule"
	KindSwitch     Kind = "switch"      // turns off the limits of a rule, of a domain or of all domains
	KindShadowMode Kind = "shadow_mode" // replaces SHADOW_MODE
)

func (k Kind) noun() string { return strings.ReplaceAll(string(k), "_", " ") }

// IsDomain reports whether the target of a switch is a whole domain.
func IsDomain(target string) bool { return target != "" && !strings.Contains(target, "|") }

// Field returns the field of a change with this kind and target. The field of an override is its target, which never starts
// with a |. The fields of other kinds start with a |, such as |rule|shop|tenant.
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

// applySwitches applies the switches of domains, of all domains, and of SHADOW_MODE to set. outcomes has the outcome of
// each override.
func applySwitches(set *limitsfile.Set, overrides []*Override, outcomes []outcome) {
	for i, o := range overrides {
		result := &outcomes[i]
		switch {
		case o.Kind == KindShadowMode:
			set.ShadowMode = &limitsfile.ShadowMode{IsOn: o.shadowMode, Notes: o.Notes}
			result.Path, result.BaseLimits, result.Limits, result.KeepsCounters = "SHADOW_MODE", "the setting", fmt.Sprint(o.shadowMode), true
		case o.Kind == KindSwitch && len(o.Target.Entries) == 0:
			switchOff(set, o, result)
		}
	}
}

// switchOff turns off the limits of a domain, or of all domains. Overrides are sorted, so the switch of all domains comes
// first. If a domain has two switches, the first one stays.
func switchOff(set *limitsfile.Set, o *Override, result *outcome) {
	rules, isFound := 0, false
	var names []string
	for _, d := range set.Domains {
		names = append(names, d.Name)
		if o.Target.Domain != "" && o.Target.Domain != d.Name {
			continue
		}
		isFound = true
		rules += countDescriptors(d.Descriptors, func(d *limitsfile.Descriptor) bool { return len(d.Limits) > 0 })
		if d.OffSwitch == nil {
			d.OffSwitch = &limitsfile.AppliedOverride{Target: o.Target.String(), Notes: o.Notes, IsSwitch: true}
		}
	}
	if !isFound && o.Target.Domain != "" {
		result.Problem, result.IsWaiting = fields.Problems{o.problem("", "%s. A rule is written as a path, such as 'shop > login'", unknownDomain(o.Target.Domain, names))}, true
		return
	}
	result.Path = "all domains"
	if o.Target.Domain != "" {
		result.Path = fields.Printable(o.Target.Domain)
	}
	result.BaseLimits, result.Limits, result.KeepsCounters = fmt.Sprintf("%d rules", rules), "off", true
}

// countDescriptors returns how many of the descriptors in list, and below list, are counted.
func countDescriptors(list []*limitsfile.Descriptor, isCounted func(*limitsfile.Descriptor) bool) int {
	n := 0
	for _, d := range list {
		if isCounted(d) {
			n++
		}
		n += countDescriptors(d.Descriptors, isCounted)
	}
	return n
}

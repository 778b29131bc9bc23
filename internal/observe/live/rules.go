package live

import (
	"fmt"
	"strings"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// ruleIndex finds the rules of the limits in force.
type ruleIndex struct {
	config  *descriptors.Config
	rules   []Rule         // have no traffic, and are in file order
	indexes map[string]int // the indexes in rules; the key is the path of the rule
}

// newRuleIndex returns the rules of config, which can be nil. authors has the authors of overrides; the key is the
// target of the override.
func newRuleIndex(config *descriptors.Config, authors map[string]string) ruleIndex {
	b := ruleIndex{config: config, indexes: map[string]int{}}
	if config == nil {
		return b
	}
	config.EachDescriptor(func(domain string, trail []*limitsfile.Descriptor) {
		r := newRule(domain, trail)
		if r.Override != nil {
			r.Override.Author = authors[r.Override.Target]
		}
		b.indexes[r.Path] = len(b.rules)
		b.rules = append(b.rules, r)
	})
	return b
}

func newRule(domain string, trail []*limitsfile.Descriptor) Rule {
	d := trail[len(trail)-1]
	r := Rule{
		Domain: domain, Path: limitsfile.Path(domain, trail), Label: d.Label(), Depth: len(trail),
		Limits: []Limit{}, Use: Unknown, Marks: []string{}, File: d.File, Line: d.Line,
	}
	unlimited, enabled := 0, 0
	for _, l := range d.Limits {
		r.Limits = append(r.Limits, newLimit(l))
		if l.Unlimited {
			unlimited++
		}
		if l.Enabled {
			enabled++
		}
	}
	addMark := func(isSet bool, text string) {
		if isSet {
			r.Marks = append(r.Marks, text)
		}
	}
	addMark(d.ShadowMode, "shadow")
	addMark(d.EnforcedPercent > 0, fmt.Sprintf("enforce %v %%", d.EnforcedPercent))
	addMark(d.QuotaMode, "quota")
	addMark(d.Quota != nil, "shared by Envoys")
	addMark(unlimited > 0, "unlimited")
	addMark(enabled == 0, "disabled")
	addMark(d.CreationNotes != nil, "run time")
	if n := len(d.Overrides); n > 0 {
		o := d.Overrides[n-1]
		if d.OffSwitch() == nil {
			r.Marks = append(r.Marks, "override")
		} else {
			r.Marks = []string{"off"} // the switch sets shadow mode or disables the limits
		}
		r.Override = &RuleOverride{Target: o.Target}
		if !o.ExpiresAt.IsZero() {
			r.Override.ExpiresAt = &o.ExpiresAt
		}
	}
	return r
}

func newLimit(l *limitsfile.Limit) Limit {
	if l.Unlimited {
		return Limit{Text: "unlimited", Name: l.Name, Unlimited: true, Disabled: !l.Enabled}
	}
	text := strings.Replace(l.String(), ", "+l.Algorithm.String(), "", 1) // the field Algorithm has the algorithm
	return Limit{Text: text, Name: l.Name, Algorithm: l.Algorithm.String(), Disabled: !l.Enabled}
}

// ruleAt returns the rule with this path. If no such rule is in force, ruleAt sets only the names of the rule: hits on
// the limit of a request, for example, have a path without a rule.
func (b *ruleIndex) ruleAt(path string) (rule Rule, isKnown bool) {
	if i, ok := b.indexes[path]; ok {
		return b.rules[i], true
	}
	domain, label, _ := strings.Cut(path, " > ")
	return Rule{Domain: domain, Path: path, Label: label, Depth: 1, Limits: []Limit{}, Marks: []string{}, Use: Unknown}, false
}

// search returns the first n rules with a path or a limit that contains text, and the number of further such rules.
// Upper and lower case are the same.
func (b *ruleIndex) search(text string, n int) (found []Rule, more int) {
	text = strings.ToLower(text)
	for i := range b.rules {
		switch r := &b.rules[i]; {
		case !r.Contains(text):
		case len(found) == n:
			more++
		default:
			found = append(found, *r)
		}
	}
	return found, more
}

package live

import (
	"fmt"
	"strings"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

type ruleIndex struct {
	config  *descriptors.Config
	rules   []Rule         // have no traffic, and are in file order
	indexes map[string]int // the indexes in rules; the key is the path of the rule
}

// newRuleIndex returns the rules of config, which can be nil. authors has the authors of overrides; the key is the
// target of the override.
func newRuleIndex(config *descriptors.Config, authors map[string]string) ruleIndex {
	index := ruleIndex{config: config, indexes: map[string]int{}}
	if config == nil {
		return index
	}
	config.EachDescriptor(func(domain string, trail []*limitsfile.Descriptor) {
		r := newRule(domain, trail)
		if r.Override != nil {
			r.Override.Author = authors[r.Override.Target]
		}
		index.indexes[r.Path] = len(index.rules)
		index.rules = append(index.rules, r)
	})
	return index
}

func newRule(domain string, trail []*limitsfile.Descriptor) Rule {
	descriptor := trail[len(trail)-1]
	rule := Rule{
		Domain: domain, Path: limitsfile.Path(domain, trail), Label: descriptor.Label(), Depth: len(trail),
		Limits: []Limit{}, Use: Unknown, Marks: []string{}, File: descriptor.File, Line: descriptor.Line,
	}
	unlimitedCount, enabledCount := 0, 0
	for _, limit := range descriptor.Limits {
		rule.Limits = append(rule.Limits, newLimit(limit))
		if limit.Unlimited {
			unlimitedCount++
		}
		if limit.Enabled {
			enabledCount++
		}
	}
	addMark := func(isSet bool, text string) {
		if isSet {
			rule.Marks = append(rule.Marks, text)
		}
	}
	addMark(descriptor.ShadowMode, "shadow")
	addMark(descriptor.EnforcedPercent > 0, fmt.Sprintf("enforce %v %%", descriptor.EnforcedPercent))
	addMark(descriptor.QuotaMode, "quota")
	addMark(descriptor.Quota != nil, "shared by Envoys")
	addMark(unlimitedCount > 0, "unlimited")
	addMark(enabledCount == 0, "disabled")
	addMark(descriptor.CreationNotes != nil, "run time")
	if n := len(descriptor.Overrides); n > 0 {
		lastOverride := descriptor.Overrides[n-1]
		if descriptor.OffSwitch() == nil {
			rule.Marks = append(rule.Marks, "override")
		} else {
			rule.Marks = []string{"off"} // the switch sets shadow mode or disables the limits
		}
		rule.Override = &RuleOverride{Target: lastOverride.Target}
		if !lastOverride.ExpiresAt.IsZero() {
			rule.Override.ExpiresAt = &lastOverride.ExpiresAt
		}
	}
	return rule
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
func (b *ruleIndex) search(text string, n int) (foundRules []Rule, moreCount int) {
	text = strings.ToLower(text)
	for i := range b.rules {
		switch r := &b.rules[i]; {
		case !r.Contains(text):
		case len(foundRules) == n:
			moreCount++
		default:
			foundRules = append(foundRules, *r)
		}
	}
	return foundRules, moreCount
}

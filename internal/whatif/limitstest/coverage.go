package limitstest

import (
	"slices"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// Coverage collects the rules that tests meet. Two rules with the same path and place count as one rule.
type Coverage struct {
	configs  []*descriptors.Config
	metRules ruleSet
}

// ruleSet is a set of rules. It can contain nil, which stands for no rule.
type ruleSet map[*descriptors.Rule]bool

// CoverageReport describes which rules the tests meet. A rule is met if a request matches it.
type CoverageReport struct {
	Rules      int         `json:"rules"`
	MetRules   int         `json:"met"`
	Percent    float64     `json:"percent"`         // 100 if there are no rules
	UnmetRules []RulePlace `json:"unmet,omitempty"` // the rules that no test meets
}

// RulePlace is a rule and its place in the limits files.
type RulePlace struct {
	Rule  string `json:"rule"`
	Place string `json:"place"`
}

// add adds config to the Configs with rules that tests should meet. It returns the set of met rules.
func (c *Coverage) add(config *descriptors.Config) ruleSet {
	if !slices.Contains(c.configs, config) {
		c.configs = append(c.configs, config)
	}
	if c.metRules == nil {
		c.metRules = ruleSet{}
	}
	return c.metRules
}

// Report returns the coverage of the rules of all Configs, in the order of the Configs.
func (c *Coverage) Report() CoverageReport {
	var rules []RulePlace
	isMet := map[RulePlace]bool{}
	for _, config := range c.configs {
		places := map[string]string{} // the key is the path of the rule
		config.EachDescriptor(func(domain string, trail []*limitsfile.Descriptor) {
			descriptor := trail[len(trail)-1]
			places[limitsfile.Path(domain, trail)] = fields.FileLine(descriptor.File, descriptor.Line)
		})
		config.EachRule(func(rule *descriptors.Rule) {
			rulePlace := RulePlace{rule.Path, places[rule.Path]}
			if _, isKnown := isMet[rulePlace]; !isKnown {
				rules = append(rules, rulePlace)
			}
			isMet[rulePlace] = isMet[rulePlace] || c.metRules[rule]
		})
	}
	report := CoverageReport{Rules: len(rules), Percent: 100}
	report.UnmetRules = slices.DeleteFunc(rules, func(rulePlace RulePlace) bool { return isMet[rulePlace] })
	report.MetRules = report.Rules - len(report.UnmetRules)
	if report.Rules > 0 {
		report.Percent = 100 * float64(report.MetRules) / float64(report.Rules)
	}
	return report
}

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
	Percent    float64     `json:"percent"` // 100 if there are no rules
	UnmetRules []UnmetRule `json:"unmet,omitempty"`
}

// UnmetRule is a rule that no test meets.
type UnmetRule struct {
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
	var rules []UnmetRule
	isMet := map[UnmetRule]bool{}
	for _, config := range c.configs {
		places := map[string]string{} // the key is the path of the rule
		config.EachDescriptor(func(domain string, trail []*limitsfile.Descriptor) {
			descriptor := trail[len(trail)-1]
			places[limitsfile.Path(domain, trail)] = fields.FileLine(descriptor.File, descriptor.Line)
		})
		config.EachRule(func(rule *descriptors.Rule) {
			unmetRule := UnmetRule{rule.Path, places[rule.Path]}
			if _, isKnown := isMet[unmetRule]; !isKnown {
				rules = append(rules, unmetRule)
			}
			isMet[unmetRule] = isMet[unmetRule] || c.metRules[rule]
		})
	}
	report := CoverageReport{Rules: len(rules), Percent: 100}
	report.UnmetRules = slices.DeleteFunc(rules, func(unmetRule UnmetRule) bool { return isMet[unmetRule] })
	report.MetRules = report.Rules - len(report.UnmetRules)
	if report.Rules > 0 {
		report.Percent = 100 * float64(report.MetRules) / float64(report.Rules)
	}
	return report
}

package limitstest

import (
	"slices"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// Coverage collects the rules that tests meet. Rules with the same path and place in two Configs count once.
type Coverage struct {
	configs []*descriptors.Config
	met     ruleSet
}

// ruleSet is a set of rules. It can have nil, for no rule.
type ruleSet map[*descriptors.Rule]bool

// CoverageReport describes which rules the tests meet. A rule is met if a request matches it.
type CoverageReport struct {
	Rules   int         `json:"rules"`
	Met     int         `json:"met"`
	Percent float64     `json:"percent"` // 100 if there are no rules
	Unmet   []UnmetRule `json:"unmet,omitempty"`
}

// UnmetRule is a rule that no test meets.
type UnmetRule struct {
	Rule  string `json:"rule"`
	Place string `json:"place"`
}

// add adds the rules of config to those that tests should meet. It returns the set of met rules.
func (c *Coverage) add(config *descriptors.Config) ruleSet {
	if !slices.Contains(c.configs, config) {
		c.configs = append(c.configs, config)
	}
	if c.met == nil {
		c.met = ruleSet{}
	}
	return c.met
}

// Report returns the coverage of the rules of all Configs, in their order.
func (c *Coverage) Report() CoverageReport {
	var order []UnmetRule
	isMet := map[UnmetRule]bool{}
	for _, config := range c.configs {
		places := map[string]string{} // by the path of the rule
		config.EachDescriptor(func(domain string, trail []*limitsfile.Descriptor) {
			last := trail[len(trail)-1]
			places[limitsfile.Path(domain, trail)] = fields.FileLine(last.File, last.Line)
		})
		config.EachRule(func(rule *descriptors.Rule) {
			r := UnmetRule{rule.Path, places[rule.Path]}
			if _, seen := isMet[r]; !seen {
				order = append(order, r)
			}
			isMet[r] = isMet[r] || c.met[rule]
		})
	}
	report := CoverageReport{Rules: len(order), Percent: 100}
	report.Unmet = slices.DeleteFunc(order, func(r UnmetRule) bool { return isMet[r] })
	report.Met = report.Rules - len(report.Unmet)
	if report.Rules > 0 {
		report.Percent = 100 * float64(report.Met) / float64(report.Rules)
	}
	return report
}

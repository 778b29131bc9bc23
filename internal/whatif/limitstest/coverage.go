package limitstest

import (
	"fmt"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// Coverage counts how often tests meet each rule. Its zero value is empty. Rules with the
// same path and place in two Configs count once.
type Coverage struct {
	configs     []*descriptors.Config
	matchCounts map[*descriptors.Config]map[*descriptors.Rule]int
}

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

// counts returns the counts of the rules of config.
func (c *Coverage) counts(config *descriptors.Config) map[*descriptors.Rule]int {
	if c.matchCounts == nil {
		c.matchCounts = map[*descriptors.Config]map[*descriptors.Rule]int{}
	}
	if c.matchCounts[config] == nil {
		c.matchCounts[config] = map[*descriptors.Rule]int{}
		c.configs = append(c.configs, config)
	}
	return c.matchCounts[config]
}

// Report returns the coverage of the rules of all Configs, in their order.
func (c *Coverage) Report() CoverageReport {
	var order []UnmetRule
	isMet := map[UnmetRule]bool{}
	for _, config := range c.configs {
		places := rulePlaces(config)
		counts := c.matchCounts[config]
		config.EachRule(func(rule *descriptors.Rule) {
			r := UnmetRule{rule.Path, places[rule.Path]}
			if _, seen := isMet[r]; !seen {
				order = append(order, r)
			}
			isMet[r] = isMet[r] || counts[rule] > 0
		})
	}
	report := CoverageReport{Rules: len(order), Percent: 100}
	for _, r := range order {
		if isMet[r] {
			report.Met++
		} else {
			report.Unmet = append(report.Unmet, r)
		}
	}
	if report.Rules > 0 {
		report.Percent = 100 * float64(report.Met) / float64(report.Rules)
	}
	return report
}

// rulePlaces returns the file and line of each rule by its path.
func rulePlaces(config *descriptors.Config) map[string]string {
	places := map[string]string{}
	config.EachDescriptor(func(domain string, trail []*limitsfile.Descriptor) {
		last := trail[len(trail)-1]
		places[limitsfile.Path(domain, trail)] = fmt.Sprintf("%s:%d", last.File, last.Line)
	})
	return places
}

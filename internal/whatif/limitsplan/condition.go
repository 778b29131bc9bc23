package limitsplan

import (
	"fmt"
	"regexp"
	"strconv"
)

// FailCondition is a condition on a report, such as denied > 1%.
type FailCondition struct {
	text    string
	figure  string
	bound   float64
	isShare bool // reports whether bound is a percentage of the calls
}

var failConditionPattern = regexp.MustCompile(`^\s*(\w+)\s*>\s*([0-9]+(?:\.[0-9]+)?)\s*(%?)\s*$`)

var figures = map[string]func(*Report) uint64{
	"denied":            func(r *Report) uint64 { return r.Calls.DeniedNow },
	"newly_denied":      func(r *Report) uint64 { return r.Calls.NewlyDenied },
	"newly_admitted":    func(r *Report) uint64 { return r.Calls.NewlyAdmitted },
	"newly_denied_keys": func(r *Report) uint64 { return uint64(r.NewlyDeniedKeys) },
}

// ParseFailCondition parses a condition of the form FIGURE > NUMBER or FIGURE > NUMBER%.
func ParseFailCondition(text string) (*FailCondition, error) {
	parts := failConditionPattern.FindStringSubmatch(text)
	if parts == nil {
		return nil, fmt.Errorf("condition: got %q, want FIGURE > NUMBER or FIGURE > NUMBER%%, such as denied > 1%%", text)
	}
	condition := &FailCondition{text: text, figure: parts[1], isShare: parts[3] != ""}
	if figures[condition.figure] == nil {
		return nil, fmt.Errorf("condition: got figure %q, want denied, newly_denied, newly_admitted or newly_denied_keys", condition.figure)
	}
	if condition.isShare && condition.figure == "newly_denied_keys" {
		return nil, fmt.Errorf("condition: got newly_denied_keys with %%, want a number of keys")
	}
	var err error
	if condition.bound, err = strconv.ParseFloat(parts[2], 64); err != nil {
		return nil, fmt.Errorf("condition: got a number of %d digits, want a smaller number", len(parts[2]))
	}
	return condition, nil
}

// Check reports whether the condition holds for r, and returns a sentence with this result.
func (c *FailCondition) Check(r *Report) (holds bool, text string) {
	number := float64(figures[c.figure](r))
	value := strconv.FormatFloat(number, 'f', -1, 64)
	if c.isShare {
		number = percent(uint64(number), r.Calls.Total)
		value = fmt.Sprintf("%.3g %%", number)
	}
	holds = number > c.bound
	verb := "does not hold"
	if holds {
		verb = "holds"
	}
	return holds, fmt.Sprintf("condition %q %s: %s is %s", c.text, verb, c.figure, value)
}

func percent(n, total uint64) float64 {
	if total == 0 {
		return 0
	}
	return 100 * float64(n) / float64(total)
}

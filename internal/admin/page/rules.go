package page

import (
	"cmp"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
)

// maxRows is the maximum number of rules in the table. A filter finds the others.
const maxRows = 200

type ruleTable struct {
	Seen int // rules with traffic
	Rows []*ruleRow
	More int // rules that match too and have no row
}

type ruleRow struct {
	treeRow
	Href    string
	Details *ruleDetails // nil unless the row is open
	Spark   spark
}

// choice has the choices of a viewer. The query of the page's address contains them.
type choice struct {
	Filter string
	Sort   string // denied, ok, use or rule
	Quiet  bool
	Rule   string // the path of the open rule
}

func parseChoice(query url.Values) choice {
	c := choice{Filter: query.Get("filter"), Sort: query.Get("sort"), Quiet: query.Get("quiet") == "show", Rule: query.Get("rule")}
	if !slices.Contains([]string{"denied", "ok", "use", "rule"}, c.Sort) {
		c.Sort = "denied"
	}
	return c
}

// QuietToggled returns the address of the page that shows quiet rules if this one hides them, or the reverse.
func (c choice) QuietToggled() string {
	c.Quiet = !c.Quiet
	return c.href()
}

// SortedBy returns the address of the page with another order.
func (c choice) SortedBy(order string) string {
	c.Sort = order
	return c.href()
}

// href returns the address of the page with c.
func (c choice) href() string {
	query := url.Values{"filter": {c.Filter}, "sort": {strings.TrimPrefix(c.Sort, "denied")}, "quiet": {""}, "rule": {c.Rule}}
	if c.Quiet {
		query.Set("quiet", "show")
	}
	maps.DeleteFunc(query, func(_ string, values []string) bool { return values[0] == "" })
	if len(query) == 0 {
		return "/#rules"
	}
	return "/?" + query.Encode() + "#rules"
}

// newRuleTable returns the table of the rules that c chooses. rules can have a rule twice. more is the number
// of rules that match too, but are not in rules. details describes the open rule. It is nil if no rule is open.
func newRuleTable(s *live.Snapshot, rules []live.Rule, more int, details *ruleDetails, c choice) ruleTable {
	t := ruleTable{Seen: len(s.Rules.Shown) + s.Rules.More}
	var chosen []*live.Rule
	known, filter := map[string]bool{}, strings.ToLower(c.Filter)
	for i := range rules {
		if r := &rules[i]; !known[r.Path] && r.Contains(filter) {
			known[r.Path] = true
			chosen = append(chosen, r)
		}
	}
	c.sort(chosen)
	rows := treeRows(chosen)
	for _, position := range rows[:min(len(rows), maxRows)] {
		row := &ruleRow{treeRow: position}
		row.Spark = newSpark("OK and denied hits per second", "rate", &s.Figures, row.OKPoints, row.DeniedPoints)
		linked := c
		linked.Rule = row.Path
		if c.Rule == row.Path {
			linked.Rule = ""
			row.Details = details
		}
		row.Href = linked.href()
		t.Rows = append(t.Rows, row)
	}
	t.More = max(len(rows)-maxRows, 0) + more
	return t
}

// sort sorts rules as the viewer chooses. Without a choice they stay in the order of a snapshot: by denied hits.
func (c choice) sort(rules []*live.Rule) {
	switch c.Sort {
	case "ok":
		slices.SortStableFunc(rules, func(a, b *live.Rule) int { return cmp.Compare(sum(b.OKPoints), sum(a.OKPoints)) })
	case "use":
		slices.SortStableFunc(rules, func(a, b *live.Rule) int { return cmp.Compare(numberOrZero(b.Use), numberOrZero(a.Use)) })
	case "rule":
		slices.SortFunc(rules, func(a, b *live.Rule) int { return strings.Compare(a.Path, b.Path) })
	}
}

func sum(points []live.Value) (total float64) {
	for _, v := range points {
		total += numberOrZero(v)
	}
	return total
}

// numberOrZero returns v, or 0 if v is unknown.
func numberOrZero(v live.Value) float64 {
	if v.IsKnown() {
		return float64(v)
	}
	return 0
}

// ruleDetails has the details in an open row.
type ruleDetails struct {
	*live.Rule
	Keys    []keyRow
	Explain string // address of explain with this rule filled in

	// Effective has the limits with the origin of their fields. It is nil if the caller has no right to use explain.
	Effective []explain.Limit
}

func newRuleDetails(r *live.Rule, keys *live.TopKeys) *ruleDetails {
	d := &ruleDetails{Rule: r, Explain: explainHref(r.Domain, exampleDescriptor(r.Path))}
	seen := map[string]bool{}
	for _, k := range slices.Concat(keys.Denied, keys.Hottest) {
		if name := k.Key + " " + k.Limit; !seen[name] {
			seen[name] = true
			d.Keys = append(d.Keys, newKeyRow(keys.Mode, k))
		}
	}
	return d
}

const separator = " > "

// branch is a rule in the tree of the rules that the page shows.
type branch struct {
	rule     *live.Rule
	place    int // in the list of the chosen rules, later the first place of the rule and of the rules below
	children []*branch
}

// treeRow is a row of the table of rules. PathStart and Label make up the path without the path of
// the parent row. Label is the last part.
type treeRow struct {
	*live.Rule
	Depth            int
	PathStart, Label string
}

// treeRows returns the rows of a tree with the chosen rules, which have different paths. A rule stands below the next
// rule on its path that is chosen too. Rules at one level have the order of the first of the rule and the rules below it.
func treeRows(chosen []*live.Rule) []treeRow {
	root := &branch{}
	byPath := make(map[string]*branch, len(chosen))
	for place, rule := range chosen {
		byPath[rule.Path] = &branch{rule: rule, place: place}
	}
	for _, rule := range chosen {
		parent := cmp.Or(parentOf(byPath, rule.Path), root)
		parent.children = append(parent.children, byPath[rule.Path])
	}
	root.sort()
	return root.appendRows(nil, "", 0)
}

// parentOf returns the next branch on the path, or nil.
func parentOf(byPath map[string]*branch, path string) *branch {
	for end := strings.LastIndex(path, separator); end >= 0; end = strings.LastIndex(path[:end], separator) {
		if b := byPath[path[:end]]; b != nil {
			return b
		}
	}
	return nil
}

// sort sorts the children of b and sets its place.
func (b *branch) sort() {
	for _, child := range b.children {
		child.sort()
		b.place = min(b.place, child.place)
	}
	slices.SortFunc(b.children, func(x, y *branch) int { return x.place - y.place })
}

// appendRows appends the rows of the children of b. start is the start of their paths.
func (b *branch) appendRows(rows []treeRow, start string, depth int) []treeRow {
	for _, child := range b.children {
		rest := strings.TrimPrefix(child.rule.Path, start)
		label := rest[strings.LastIndex(separator+rest, separator):]
		rows = append(rows, treeRow{child.rule, depth, strings.TrimSuffix(rest, label), label})
		rows = child.appendRows(rows, child.rule.Path+separator, min(depth+1, 4))
	}
	return rows
}

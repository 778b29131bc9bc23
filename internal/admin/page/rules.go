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

// maxRows is the maximum number of rules in the table. A filter finds all other rules.
const maxRows = 200

type ruleTable struct {
	RulesWithTraffic int
	Rows             []*ruleRow
	More             int // the number of matching rules that have no row
}

type ruleRow struct {
	treeRow
	Href    string
	Details *ruleDetails // nil unless the row is open
	Spark   spark
}

// userChoice says which rules the user wants to see. The query of the page's address contains the choice.
type userChoice struct {
	Filter          string
	Sort            string // denied, ok, use or rule
	ShowsQuietRules bool   // also show rules without recent traffic
	Rule            string // the path of the open rule
}

func parseChoice(query url.Values) userChoice {
	choice := userChoice{Filter: query.Get("filter"), Sort: query.Get("sort"), ShowsQuietRules: query.Get("quiet") == "show", Rule: query.Get("rule")}
	if !slices.Contains([]string{"denied", "ok", "use", "rule"}, choice.Sort) {
		choice.Sort = "denied"
	}
	return choice
}

// QuietRulesHref returns the address of the page that shows quiet rules, or hides them if c shows them.
func (c userChoice) QuietRulesHref() string {
	c.ShowsQuietRules = !c.ShowsQuietRules
	return c.href()
}

// SortHref returns the address of the page with another order.
func (c userChoice) SortHref(order string) string {
	c.Sort = order
	return c.href()
}

func (c userChoice) href() string {
	query := url.Values{"filter": {c.Filter}, "sort": {strings.TrimPrefix(c.Sort, "denied")}, "quiet": {""}, "rule": {c.Rule}}
	if c.ShowsQuietRules {
		query.Set("quiet", "show")
	}
	maps.DeleteFunc(query, func(_ string, values []string) bool { return values[0] == "" })
	if len(query) == 0 {
		return "/#rules"
	}
	return "/?" + query.Encode() + "#rules"
}

// newRuleTable returns the table of the rules that choice chooses from rules. The list rules can have a rule twice.
// hiddenRules is the number of matching rules that are not in rules. details is nil if no rule is open.
func newRuleTable(snapshot *live.Snapshot, rules []live.Rule, hiddenRules int, details *ruleDetails, choice userChoice) ruleTable {
	table := ruleTable{RulesWithTraffic: len(snapshot.Rules.Shown) + snapshot.Rules.More}
	var chosenRules []*live.Rule
	seenPaths, filter := map[string]bool{}, strings.ToLower(choice.Filter)
	for i := range rules {
		if rule := &rules[i]; !seenPaths[rule.Path] && rule.Contains(filter) {
			seenPaths[rule.Path] = true
			chosenRules = append(chosenRules, rule)
		}
	}
	choice.sort(chosenRules)
	rows := treeRows(chosenRules)
	for _, rowInTree := range rows[:min(len(rows), maxRows)] {
		row := &ruleRow{treeRow: rowInTree}
		row.Spark = newSpark("OK and denied hits per second", "rate", &snapshot.Figures, row.OKPoints, row.DeniedPoints)
		nextChoice := choice // a click on the row opens the rule, or closes an open rule
		nextChoice.Rule = row.Path
		if choice.Rule == row.Path {
			nextChoice.Rule = ""
			row.Details = details
		}
		row.Href = nextChoice.href()
		table.Rows = append(table.Rows, row)
	}
	table.More = max(len(rows)-maxRows, 0) + hiddenRules
	return table
}

// sort sorts rules as the user chooses. By default, rules stay in the order of the snapshot: by denied hits.
func (c userChoice) sort(rules []*live.Rule) {
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

func numberOrZero(v live.Value) float64 {
	if v.IsKnown() {
		return float64(v)
	}
	return 0
}

type ruleDetails struct {
	*live.Rule
	Keys        []keyRow
	ExplainHref string // the address of the page with a request of this rule in the form of explain

	// EffectiveLimits has the limits with the origin of their fields. It is nil if the caller may not use explain.
	EffectiveLimits []explain.Limit
}

func newRuleDetails(r *live.Rule, keys *live.TopKeys) *ruleDetails {
	details := &ruleDetails{Rule: r, ExplainHref: explainHref(r.Domain, exampleDescriptor(r.Path))}
	hasRow := map[string]bool{}
	for _, k := range slices.Concat(keys.Denied, keys.Hottest) {
		if name := k.Key + " " + k.Limit; !hasRow[name] {
			hasRow[name] = true
			details.Keys = append(details.Keys, newKeyRow(keys.Mode, k))
		}
	}
	return details
}

const pathSeparator = " > "

// branch is a rule in the tree of the rules that the page shows.
type branch struct {
	rule     *live.Rule
	index    int // the index of the rule in chosenRules; after sort, the lowest index of the rule and of all rules below it
	children []*branch
}

// treeRow is a row of the table of rules. PathStart and Label together are the path without the path of
// the parent row. Label is the last part of the path, such as tenant=acme.
type treeRow struct {
	*live.Rule
	Depth            int
	PathStart, Label string
}

// treeRows returns the rows of a tree with the chosen rules, which have different paths. The parent of a rule is the
// chosen rule with the longest path that begins the rule's path. Rules with the same parent are in the order of
// branch.index.
func treeRows(chosenRules []*live.Rule) []treeRow {
	root := &branch{}
	branchesByPath := make(map[string]*branch, len(chosenRules))
	for i, rule := range chosenRules {
		branchesByPath[rule.Path] = &branch{rule: rule, index: i}
	}
	for _, rule := range chosenRules {
		parent := cmp.Or(parentOf(branchesByPath, rule.Path), root)
		parent.children = append(parent.children, branchesByPath[rule.Path])
	}
	root.sort()
	return root.appendRows(nil, "", 0)
}

// parentOf returns the branch with the longest path that begins path, or nil.
func parentOf(branchesByPath map[string]*branch, path string) *branch {
	for end := strings.LastIndex(path, pathSeparator); end >= 0; end = strings.LastIndex(path[:end], pathSeparator) {
		if b := branchesByPath[path[:end]]; b != nil {
			return b
		}
	}
	return nil
}

func (b *branch) sort() {
	for _, child := range b.children {
		child.sort()
		b.index = min(b.index, child.index)
	}
	slices.SortFunc(b.children, func(x, y *branch) int { return x.index - y.index })
}

// appendRows appends the rows of the children of b. parentPath is the start of the paths of these rules.
func (b *branch) appendRows(rows []treeRow, parentPath string, depth int) []treeRow {
	for _, child := range b.children {
		relativePath := strings.TrimPrefix(child.rule.Path, parentPath)
		label := relativePath[strings.LastIndex(pathSeparator+relativePath, pathSeparator):]
		rows = append(rows, treeRow{child.rule, depth, strings.TrimSuffix(relativePath, label), label})
		rows = child.appendRows(rows, child.rule.Path+pathSeparator, min(depth+1, 4))
	}
	return rows
}

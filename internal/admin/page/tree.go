package page

import (
	"cmp"
	"slices"
	"strings"

	"github.com/seed-81f232ab/rls/internal/observe/live"
)

const separator = " > "

// branch is a rule in the tree of the rules that the page shows.
type branch struct {
	rule     *live.Rule
	score    float64 // of the rule, later the highest score of the rule and of the rules below
	children []*branch
}

// treeRow is a row of the table of rules. PathStart and Label make up the path without the path of
// the parent row. Label is the last part.
type treeRow struct {
	*live.Rule
	Depth            int
	PathStart, Label string
}

// treeRows returns the rows of a tree with the chosen rules, which have different paths. A rule stands
// below the next rule on its path that is chosen too. Rules at one level are sorted by the highest score
// among the rule and the rules below it, then by their place in chosen.
func treeRows(chosen []*live.Rule, score func(*live.Rule) float64) []treeRow {
	root := &branch{}
	byPath := make(map[string]*branch, len(chosen))
	for _, rule := range chosen {
		byPath[rule.Path] = &branch{rule: rule, score: score(rule)}
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

// sort sorts the children of b and sets its score.
func (b *branch) sort() {
	for _, child := range b.children {
		child.sort()
		b.score = max(b.score, child.score)
	}
	slices.SortStableFunc(b.children, func(x, y *branch) int { return cmp.Compare(y.score, x.score) })
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

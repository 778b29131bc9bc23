package page

import (
	"cmp"
	"slices"
	"strings"
)

// separator stands between the parts of the path of a rule.
const separator = " > "

// branch is a rule in the tree of the rules that the page shows.
type branch struct {
	path     string
	place    int     // of the rule in the snapshot
	score    float64 // of the rule, later the highest score of the rule and of the rules below
	children []*branch
}

// treeRow is a row of the table of rules.
type treeRow struct {
	place int // of the rule in the snapshot
	depth int

	// above is the part of the path that no row shows. label is the end of the path.
	above, label string
}

// treeRows returns the rows of a tree with the paths of chosen. A rule stands below the next
// rule on its path that is chosen too. Rules at one level are sorted by the highest score
// among the rule and the rules below it, then by their place.
func treeRows(paths []string, chosen []int, score func(place int) float64) []treeRow {
	byPath := make(map[string]*branch, len(chosen))
	for _, place := range chosen {
		byPath[paths[place]] = &branch{path: paths[place], place: place, score: score(place)}
	}
	root := &branch{}
	for _, place := range chosen {
		b := byPath[paths[place]]
		if b.place != place {
			continue // a second rule of the same path
		}
		parent := parentOf(byPath, b.path)
		if parent == nil {
			parent = root
		}
		parent.children = append(parent.children, b)
	}
	root.sort()
	return root.appendRows(nil, 0)
}

// parentOf returns the next branch on the path, or nil.
func parentOf(byPath map[string]*branch, path string) *branch {
	for {
		end := strings.LastIndex(path, separator)
		if end < 0 {
			return nil
		}
		path = path[:end]
		if b := byPath[path]; b != nil {
			return b
		}
	}
}

// sort sorts the children of b and sets its score.
func (b *branch) sort() {
	for _, child := range b.children {
		child.sort()
		b.score = max(b.score, child.score)
	}
	slices.SortStableFunc(b.children, func(x, y *branch) int {
		return cmp.Or(cmp.Compare(y.score, x.score), cmp.Compare(x.place, y.place))
	})
}

// appendRows appends the rows of the children of b.
func (b *branch) appendRows(rows []treeRow, depth int) []treeRow {
	for _, child := range b.children {
		rest := child.path
		if b.path != "" {
			rest = strings.TrimPrefix(rest, b.path+separator)
		}
		start := 0
		if end := strings.LastIndex(rest, separator); end >= 0 {
			start = end + len(separator)
		}
		rows = append(rows, treeRow{place: child.place, depth: depth, above: rest[:start], label: rest[start:]})
		rows = child.appendRows(rows, min(depth+1, 4))
	}
	return rows
}

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
	index    int     // of the rule in the snapshot
	score    float64 // of the rule, later the highest score of the rule and of the rules below
	children []*branch
}

// treeRow is a row of the table of rules.
type treeRow struct {
	index int // of the rule in the snapshot
	depth int

	// pathStart and label make up the path without the path of the parent row. label is the
	// last part.
	pathStart, label string
}

// treeRows returns the rows of a tree with the paths of chosen. A rule stands below the next
// rule on its path that is chosen too. Rules at one level are sorted by the highest score
// among the rule and the rules below it, then by their index in paths.
func treeRows(paths []string, chosen []int, score func(index int) float64) []treeRow {
	byPath := make(map[string]*branch, len(chosen))
	for _, index := range chosen {
		byPath[paths[index]] = &branch{path: paths[index], index: index, score: score(index)}
	}
	root := &branch{}
	for _, index := range chosen {
		b := byPath[paths[index]]
		if b.index != index {
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
		return cmp.Or(cmp.Compare(y.score, x.score), cmp.Compare(x.index, y.index))
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
		rows = append(rows, treeRow{index: child.index, depth: depth, pathStart: rest[:start], label: rest[start:]})
		rows = child.appendRows(rows, min(depth+1, 4))
	}
	return rows
}

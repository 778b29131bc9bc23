package boundedyaml

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// smallPieces are bounds with which each item of a list is a piece.
var smallPieces = Bounds{PieceNodes: 1}

// readItems returns the number of pieces of the field list, and a line such as "2:3 !!strx" for each node of the items.
func readItems(t testing.TB, data string, b Bounds) (lines []string, pieces int, err error) {
	d, err := Open([]byte(data), "list", b)
	if err != nil {
		return nil, 0, err
	}
	if !d.IsInPieces() {
		return nodeLines(t, listOf(d.Root)), 0, nil
	}
	err = d.Items(func(items []*yaml.Node) bool {
		pieces++
		lines = append(lines, nodeLines(t, items)...)
		return true
	})
	return lines, pieces, err
}

// listOf returns the items of the last field of root that has the name list.
func listOf(root *yaml.Node) (items []*yaml.Node) {
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value == "list" {
			items = root.Content[i+1].Content
		}
	}
	return items
}

func nodeLines(t testing.TB, nodes []*yaml.Node) (lines []string) {
	for _, n := range nodes {
		lines = append(lines, fmt.Sprintf("%d:%d %s%s", n.Line, n.Column, n.Tag, n.Value))
		if n.Kind == yaml.AliasNode {
			lines = append(lines, nodeLines(t, []*yaml.Node{n.Alias})...)
		}
		lines = append(lines, nodeLines(t, n.Content)...)
	}
	return lines
}

func TestPiecesHaveTheItemsOfTheWholeDocument(t *testing.T) {
	for _, test := range []struct {
		name, data string
		pieces     int
	}{
		{"items", "a: b\nlist:\n- x\n- {k: v}\n- k: v\n  l:\n  - z\n", 3},
		{"indented items", "list:   # all\n\n  # first\n  - x\n\n  - y: z\n    k: [1,\n 2]\n", 0},
		{"indented lists", "list:\n  - x\n  -\n    - y\n    - z\n  - - a\n    - b\n", 3},
		{"line breaks of Windows", "a: b\r\nlist:\r\n- x\r\n- y\r\n", 2},
		{"a start of a document", "--- # start\na: b\nlist:\n- x\n- y\n", 2},
		{"an alias of an earlier item", "list:\n- &a {k: v}\n- *a\n- {l: *a}\n", 3},
		{"an & in a text", "list:\n- a&b\n- \"a & b\"\n- {k: x&y}\n", 3},
		{"an & in a word", "list:\n- a&b\n- c\n- {k: x&y}\n", 3},
		{"an anchor after a tag", "list:\n- !!str &a x\n- *a\n", 2},
		{"an alias of the head", "a: &a {k: v}\nlist:\n- *a\n- *a", 2},
		{"block text that looks like items", "list:\n- |\n  - x\n  - y\n- >\n   z\n", 2},
		{"quotes over items", "list:\n- a\n- \"x\n- y\"\n- z", 2},
		{"brackets over items", "list:\n- a\n- [x,\n- y]\n- z", 0},
		{"another field after the list", "list:\n- x\n- y\nb: c", 0},
		{"the end of the document after the list", "list:\n- x\n- y\n...\n", 0},
		{"a second document", "list:\n- x\n---\nlist:\n- y\n", 0},
		{"a list in the second document", "a: b\n---\nlist:\n- y\n", 0},
		{"a list in brackets", "list: [x, y]", 0},
		{"JSON", `{"list": ["x", {"k": "v"}]}`, 0},
		{"no list", "a: b\n", 0},
		{"an empty list", "list:\n", 0},
		{"two lists", "list:\n- x\nlist:\n- y\n", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, pieces, err := readItems(t, test.data, smallPieces)
			wholeDocument, wholeErr := Parse([]byte(test.data), Bounds{})
			if wholeErr != nil {
				assert.Equal(t, wholeErr, err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, nodeLines(t, listOf(wholeDocument.Root)), got)
			assert.Equal(t, test.pieces, pieces)
		})
	}
}

func TestProblemsHaveTheirLine(t *testing.T) {
	for _, test := range []struct{ name, data, want string }{
		{"open brace in a piece", "list:\n- x\n- y\n- {z\n", "line 4: not valid YAML: { opens here"},
		{"open brace in the head", "a: {\nlist:\n- x\n", "line 1: not valid YAML: { opens here"},
		{"unknown anchor", "list:\n- x\n- *a\n", "line 3: not valid YAML: unknown anchor: got *a"},
		{"an alias in its own anchor", "list:\n- x\n- &a [y, *a]\n", "line 3: alias *a is inside its own anchor"},
		{"an alias in its own anchor, with an older anchor", "list:\n- &a x\n- &a [y, *a]\n", "line 3: alias *a is inside its own anchor"},
		{"many repetitions", "list:\n- &a [" + strings.Repeat("x, ", 30) + "]\n- [*a, *a]\n- [*a, *a]\n", "line 4: aliases repeat more than 100 keys and values"},
		{"repetitions of repetitions", "list:\n- &a [x, x, x]\n- &b [*a, *a, *a, *a, *a]\n- &c [*b, *b, *b, *b, *b]\n", "line 4: aliases repeat more than 100 keys and values"},
		{"many anchors in pieces", "list:\n" + strings.Repeat("- &a [x]\n", 60), "line 52: more than 100 keys and values have anchors (&)"},
		{"a large item", "list:\n- x\n- [" + strings.Repeat("x, ", 51) + "]\n", "line 3: more than 100 keys and values to parse at once; split the file, or put list last"},
		{"a large list in brackets", "list: [" + strings.Repeat("x, ", 51) + "]\n", "line 1: more than 100 keys and values to parse at once; split the file, or put list last"},
		{"a mistake in a large file", "list:\n" + strings.Repeat("- x\n", 200) + "- {x\n- y\n", "line 202: not valid YAML"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, _, err := readItems(t, test.data, Bounds{PieceNodes: 1, MaxNodes: 100, MaxRepeatedNodes: 100})
			var p *Problem
			require.ErrorAs(t, err, &p)
			assert.Contains(t, err.Error(), test.want)
		})
	}
	_, err := Parse([]byte(" # nothing\n"), Bounds{})
	assert.ErrorIs(t, err, ErrEmpty)
}

func TestSecondDocumentIsReported(t *testing.T) {
	d, err := Open([]byte("list:\n- x\n---\na: b\n"), "list", smallPieces)
	require.NoError(t, err)
	require.NotNil(t, d.SecondRoot)
	assert.Equal(t, 3, d.SecondRoot.Line)
}

// nodeCount returns the number of nodes of n.
func nodeCount(n *yaml.Node) int {
	total := 1
	for _, child := range n.Content {
		total += nodeCount(child)
	}
	return total
}

func TestCountIsExactForRules(t *testing.T) {
	const block = "domain: d\ndescriptors:\n- key: k\n  value: v\n  rate_limit:\n    unit: minute\n    requests_per_unit: 1\n- key: l\n"
	const json = `{"domain": "d", "descriptors": [{"key": "k", "value": "v"}, {"key": "l", "value": "w"}]}`
	for _, data := range []string{block, json, "- a\n- - b\n  - c\n", "? a\n? b\n", "{a,b}"} {
		var doc yaml.Node
		require.NoError(t, yaml.Unmarshal([]byte(data), &doc))
		got, _ := countNodes([]byte(data), 1000)
		assert.InDelta(t, nodeCount(doc.Content[0]), got, 2, data)
	}
}

// FuzzPieces checks that pieces have the items of the whole document, and that the count is at most a third too low.
func FuzzPieces(f *testing.F) {
	f.Add("a: b\nlist:\n- k: \"v, w\"\n  l:\n  - [x, {y: z}]\n- 'z'\n")
	f.Add("list:\n- &a [x: y]\n- *a\n- {\"k\":v, ? m, l: |\n\n  text\n }\n")
	f.Add("list: # c\n  - - a\n    - b\n  # d\n  -\n    c: !!str\n...\n")
	f.Fuzz(func(t *testing.T, data string) {
		wholeDocument, wholeErr := Parse([]byte(data), Bounds{})
		got, _, err := readItems(t, data, smallPieces)
		if errors.Is(wholeErr, ErrEmpty) || wholeErr != nil && err != nil {
			return
		}
		if wholeErr != nil || err != nil {
			t.Fatalf("whole %v, pieces %v", wholeErr, err)
		}
		if want := nodeLines(t, listOf(wholeDocument.Root)); strings.Join(want, "\n") != strings.Join(got, "\n") {
			t.Fatalf("got %q, want %q", got, want)
		}
		count, _ := countNodes([]byte(data), len(data)*2+1)
		if nodes := nodeCount(wholeDocument.Root); nodes*2 > count*3+6 {
			t.Fatalf("count is %d of %d nodes", count, nodes)
		}
	})
}

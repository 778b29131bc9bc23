// Package boundedyaml parses YAML files in bounded memory. The tree of a file takes up to a hundred times the memory of the
// file, and aliases can multiply the tree. So this package counts the nodes before it makes a tree, and the nodes behind an
// alias before anybody follows the alias. It parses a long list in pieces.
//
// An error of the parser names no remedy, so this package looks for the cause itself. The parser of goccy/go-yaml does
// not help: of the 50 mistakes in cause_test.go, it accepts 3 and puts 22 in a wrong place.
//
// Terms:
//
// - node: a key, a value, a list or a mapping;
// - piece: some neighbouring items of a long list, which are parsed as one tree.
package boundedyaml

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bounds are the bounds of a file. 0 means the default.
type Bounds struct {
	// MaxNodes bounds the nodes of one tree. A tree is a whole document, or one piece of a list.
	MaxNodes int

	// MaxRepeatedNodes bounds the nodes behind all aliases. A node counts again at each use of its alias.
	MaxRepeatedNodes int

	// PieceNodes is the number of nodes after which a piece ends; default 20,000.
	PieceNodes int
}

const (
	// DefaultMaxNodes is about the number of nodes in 45,000 rules. A node takes 200 bytes.
	DefaultMaxNodes = 500_000

	// DefaultMaxRepeatedNodes is about the number of nodes that 200,000 rules repeat if all rules have an alias of one limit.
	DefaultMaxRepeatedNodes = 1_000_000

	defaultPieceNodes = 20_000
)

// Problem is the reason why a file can't be parsed, with its place in the file.
type Problem struct {
	Line, Column int // Column is 0 if the column is unknown
	Reason       string
}

// Error implements error.
func (p *Problem) Error() string { return fmt.Sprintf("line %d: %s", p.Line, p.Reason) }

func problemAt(n *yaml.Node, format string, args ...any) error {
	return &Problem{n.Line, n.Column, fmt.Sprintf(format, args...)}
}

// ErrEmpty is the error of a file without a document.
var ErrEmpty = errors.New("file is empty")

// Document is the first document of a file.
type Document struct {
	// Root is the root node. If IsInPieces is true, Root lacks the items that Items returns.
	Root *yaml.Node

	// SecondRoot is the root node of the second document of the file; nil if the file has one document.
	SecondRoot *yaml.Node

	data    []byte // the whole file
	field   string // the name of the list that Items returns; empty in a document of Parse
	bounds  Bounds
	aliases aliasCounter
	decoder *yaml.Decoder // parses all pieces in their order, because anchors can be in other pieces; nil without anchors
	pieces  []piece       // nil if Root has all items
}

// Parse parses the first document of a file. The error is a *Problem or ErrEmpty.
func Parse(data []byte, b Bounds) (*Document, error) {
	d := newDocument(data, "", b)
	return d, d.parseWhole()
}

// Open parses the first document of a file, except the items of field, a list at the root. Items parses the items later.
// If Open can't cut the list into pieces, it parses the whole document.
func Open(data []byte, field string, b Bounds) (*Document, error) {
	d := newDocument(data, field, b)
	head, pieces, ok := cutList(data, field, d.bounds.PieceNodes)
	if !ok || d.openPieces(head, pieces) != nil {
		return d, d.parseWhole()
	}
	return d, nil
}

func newDocument(data []byte, field string, b Bounds) *Document {
	b.MaxNodes = cmp.Or(b.MaxNodes, DefaultMaxNodes)
	b.MaxRepeatedNodes = cmp.Or(b.MaxRepeatedNodes, DefaultMaxRepeatedNodes)
	b.PieceNodes = cmp.Or(b.PieceNodes, defaultPieceNodes)
	return &Document{data: data, field: field, bounds: b, aliases: newAliasCounter(b)}
}

func (d *Document) parseWhole() error {
	d.pieces, d.aliases = nil, newAliasCounter(d.bounds)
	if err := d.checkCount(d.data, 1); err != nil {
		return err
	}
	decoder := yaml.NewDecoder(bytes.NewReader(d.data))
	var doc, secondDoc yaml.Node // the parents of the root nodes
	if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
		return ErrEmpty
	} else if err != nil {
		return d.syntaxProblem(err, 0)
	}
	if err := decoder.Decode(&secondDoc); !errors.Is(err, io.EOF) {
		d.SecondRoot = &secondDoc
	}
	if len(doc.Content) == 0 {
		return ErrEmpty
	}
	d.Root = doc.Content[0]
	_, err := d.aliases.size(d.Root)
	return err
}

// checkCount returns an error if data has too many nodes for one tree. firstLine is the line in the file where data starts.
func (d *Document) checkCount(data []byte, firstLine int) error {
	count, line := countNodes(data, d.bounds.MaxNodes)
	if count <= d.bounds.MaxNodes {
		return nil
	}
	advice := "split the file"
	if d.field != "" {
		advice = fmt.Sprintf("split the file, or put %s last, with each item on lines of its own (- key: …)", d.field)
	}
	return &Problem{Line: firstLine + line - 1, Reason: fmt.Sprintf("more than %d keys and values to parse at once; %s", d.bounds.MaxNodes, advice)}
}

func (d *Document) openPieces(head []byte, pieces []piece) error {
	if err := d.checkCount(head, 1); err != nil {
		return err
	}
	decoder := yaml.NewDecoder(bytes.NewReader(head))
	if mayHaveAnchors(d.data) {
		readers := []io.Reader{bytes.NewReader(head)}
		for _, p := range pieces { // each piece follows a line "---", which the file does not have; shiftLines subtracts these lines
			readers = append(readers, strings.NewReader("---\n"), bytes.NewReader(p.data))
		}
		decoder = yaml.NewDecoder(io.MultiReader(readers...))
		d.decoder = decoder
	}
	var doc yaml.Node
	if err := decoder.Decode(&doc); err != nil {
		return err
	}
	root := doc.Content[0]
	var lastKey yaml.Node // the key of the last field at the root
	if n := len(root.Content); root.Kind == yaml.MappingNode && n >= 2 {
		lastKey = *root.Content[n-2]
	}
	if lastKey.Value != d.field || lastKey.Line != pieces[0].line-1 {
		return errors.New("the list is not in the first document")
	}
	d.Root, d.pieces = root, pieces
	_, err := d.aliases.size(root)
	return err
}

// IsInPieces reports whether Items returns the items of the list. Otherwise Root has the items.
func (d *Document) IsInPieces() bool { return d.pieces != nil }

// Items parses the pieces of the list, and calls f with the items of each piece until f returns false. If f keeps no nodes,
// only one piece at a time is in memory. The error is a *Problem.
func (d *Document) Items(f func(items []*yaml.Node) bool) error {
	if handledItems, err := d.forEachPiece(f); err != nil {
		return d.parseRemainingItems(handledItems, err, f)
	}
	return nil
}

// forEachPiece calls f with the items of each piece until f returns false or a piece can't be parsed. handledItems is the
// number of items that f has got.
func (d *Document) forEachPiece(f func(items []*yaml.Node) bool) (handledItems int, err error) {
	for i := range d.pieces {
		items, err := d.parsePiece(i)
		if err != nil {
			return handledItems, err
		}
		if !f(items) {
			break
		}
		handledItems += len(items)
	}
	return handledItems, nil
}

// parsePiece parses piece i. If d has a decoder, the caller must parse the pieces in their order.
func (d *Document) parsePiece(i int) ([]*yaml.Node, error) {
	p := d.pieces[i]
	if err := d.checkCount(p.data, p.line); err != nil {
		return nil, err
	}
	var doc yaml.Node
	var err error
	lineShift := 1 - p.line // the line number of the parser minus the line number in the file
	if d.decoder == nil {
		err = yaml.Unmarshal(p.data, &doc)
	} else {
		lineShift = i + 1
		err = d.decoder.Decode(&doc)
	}
	if err == nil && len(doc.Content) == 0 {
		err = ErrEmpty
	}
	if err != nil {
		return nil, d.syntaxProblem(err, lineShift)
	}
	list := doc.Content[0]
	if list.Kind != yaml.SequenceNode {
		return nil, problemAt(list, "%s is not a list", d.field)
	}
	shiftLines(list, lineShift)
	if d.decoder != nil {
		_, err = d.aliases.size(list)
	}
	return list.Content, err
}

// parseRemainingItems parses the whole document after pieceError, the error of a piece. A piece of a valid document is
// invalid if cutList has cut inside quotes or brackets. parseRemainingItems calls f with the items after the first
// handledItems. If the document is too large for one tree, it returns pieceError.
func (d *Document) parseRemainingItems(handledItems int, pieceError error, f func([]*yaml.Node) bool) error {
	if d.checkCount(d.data, 1) != nil {
		return pieceError
	}
	if err := d.parseWhole(); err != nil {
		return err
	}
	fields := d.Root.Content
	if list := fields[len(fields)-1]; list.Kind == yaml.SequenceNode && len(list.Content) >= handledItems {
		f(list.Content[handledItems:])
		return nil
	}
	return pieceError
}

func shiftLines(n *yaml.Node, lineShift int) {
	n.Line -= lineShift
	for _, child := range n.Content {
		shiftLines(child, lineShift)
	}
}

// aliasCounter counts the nodes behind aliases, at each use of an alias.
type aliasCounter struct {
	bounds        Bounds
	anchors       map[string]anchor // the key is the name of the anchor
	nodes         int               // the number of counted nodes, without repetitions
	repeatedNodes int               // the number of nodes behind all counted aliases

	// anchoredNodes is the number of nodes at and below anchors. The parser keeps these nodes until the end of the file.
	anchoredNodes int
	isBelowAnchor bool // size is counting the nodes below an anchor
}

// anchor is a node that aliases can repeat.
type anchor struct {
	node *yaml.Node
	size int // the number of nodes at and below node, with repetitions; 0 until all these nodes are counted
}

const maxSize = 1 << 40 // bounds sums of sizes, so that nested aliases can't make an int overflow

func newAliasCounter(b Bounds) aliasCounter {
	return aliasCounter{bounds: b, anchors: map[string]anchor{}}
}

// size returns the number of nodes at and below n, with repetitions.
func (c *aliasCounter) size(n *yaml.Node) (int, error) {
	c.nodes++
	if n.Kind == yaml.AliasNode {
		return c.aliasSize(n)
	}
	if n.Anchor == "" {
		return c.treeSize(n)
	}
	oldNodeCount, wasBelowAnchor := c.nodes, c.isBelowAnchor
	c.anchors[n.Anchor], c.isBelowAnchor = anchor{node: n}, true
	total, err := c.treeSize(n)
	c.isBelowAnchor = wasBelowAnchor
	if c.anchors[n.Anchor].node == n {
		c.anchors[n.Anchor] = anchor{n, total}
	}
	if !wasBelowAnchor {
		c.anchoredNodes += 1 + c.nodes - oldNodeCount
	}
	if err == nil && c.anchoredNodes > c.bounds.MaxNodes {
		err = problemAt(n, "more than %d keys and values have anchors (&); remove the anchors that no alias uses", c.bounds.MaxNodes)
	}
	return total, err
}

func (c *aliasCounter) treeSize(n *yaml.Node) (int, error) {
	total := 1
	for _, child := range n.Content {
		size, err := c.size(child)
		if err != nil {
			return 0, err
		}
		total = min(total+size, maxSize)
	}
	return total, nil
}

func (c *aliasCounter) aliasSize(n *yaml.Node) (int, error) {
	size := c.anchors[n.Value].size
	if size == 0 {
		return 0, problemAt(n, "alias *%s is inside its own anchor", n.Value)
	}
	if c.repeatedNodes = min(c.repeatedNodes+size, maxSize); c.repeatedNodes > c.bounds.MaxRepeatedNodes {
		return 0, problemAt(n, "aliases repeat more than %d keys and values (each use of an alias counts); write them out, or split the file", c.bounds.MaxRepeatedNodes)
	}
	return size, nil
}

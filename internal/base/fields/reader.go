package fields

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/seed-81f232ab/rls/internal/base/boundedyaml"
)

const (
	maxProblems = 100
	maxNodes    = 2_000_000 // bounds the nodes that a Reader reads; nodes behind an alias count at each use
)

// Reader reads one file, and collects the problems of the file.
type Reader struct {
	// Path is the path for the problems that Errorf adds.
	Path string

	file     File
	problems Problems
	nodes    int // the number of nodes that were read
}

// File is a file to read.
type File struct {
	Name     string // the name in problems
	Data     []byte
	MaxBytes int

	// Things is the name of the contents in messages, such as "tokens".
	Things string

	// Missing says what an empty file lacks. If Missing is empty, the file may be empty.
	Missing string

	// IsSecret reports that problems must not show a value.
	IsSecret bool
}

// Read calls read with the root of the file. The error has type Problems. For invalid YAML, it has one problem.
func (f File) Read(read func(r *Reader, root *yaml.Node)) error {
	r := &Reader{file: f}
	r.parse(read)
	if len(r.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(r.problems, func(a, b Problem) int { return cmp.Or(a.Line-b.Line, a.Column-b.Column) })
	return slices.Compact(r.problems)
}

func (r *Reader) parse(read func(r *Reader, root *yaml.Node)) {
	f := r.file
	if len(f.Data) > f.MaxBytes {
		r.Errorf(nil, "file is %d bytes; maximum is %d", len(f.Data), f.MaxBytes)
		return
	}
	doc, err := boundedyaml.Parse(f.Data, boundedyaml.Bounds{})
	problem, isProblem := errors.AsType[*boundedyaml.Problem](err)
	switch {
	case isProblem && f.IsSecret:
		r.Errorf(&yaml.Node{Line: problem.Line}, "not valid YAML; want quotes around each value, and the same indentation in each line")
	case isProblem:
		r.Errorf(&yaml.Node{Line: problem.Line, Column: problem.Column}, "%s", problem.Reason)
	case err != nil && f.Missing != "":
		r.Errorf(nil, "%v: %s", err, f.Missing)
	case err == nil:
		if doc.Second != nil {
			r.Errorf(doc.Second, "file has a second YAML document; put all %s into one", f.Things)
		}
		read(r, Resolve(doc.Root))
	}
}

// Errorf adds a problem at n. n is nil if the problem has no place.
func (r *Reader) Errorf(n *yaml.Node, format string, args ...any) {
	if len(r.problems) >= maxProblems {
		return
	}
	p := Problem{File: r.file.Name, Path: r.Path, Reason: fmt.Sprintf(format, args...)}
	if n != nil {
		p.Line, p.Column = n.Line, n.Column
	}
	r.problems = append(r.problems, p)
}

// Values are the fields of an object. The key is the name of the field.
type Values map[string]Given

// Given is a field of an object with its value. It is zero if the object lacks the field.
type Given struct {
	*Field
	Value
	Node *yaml.Node
}

// Is reports whether the object has the field, even if the value is invalid.
func (g Given) Is() bool { return g.Node != nil }

// Object reads the fields of a mapping. If n is not a mapping, it returns nil. Messages name the mapping level.
func (r *Reader) Object(n *yaml.Node, level string, known []Field) Values {
	names := Names(known)
	if n.Kind != yaml.MappingNode {
		got := Display(n)
		if r.file.IsSecret && n.Kind == yaml.ScalarNode {
			got = "a text"
		}
		r.Errorf(n, "%s: got %s, want a mapping with %s", level, got, strings.Join(names, ", "))
		return nil
	}
	values := Values{}
	for i := 0; i+1 < len(n.Content) && r.countNode(n); i += 2 {
		key, value := Resolve(n.Content[i]), Resolve(n.Content[i+1])
		field := slices.Index(names, key.Value)
		switch {
		case key.Kind != yaml.ScalarNode || field < 0:
			r.Errorf(key, "unknown key%s in %s; want %s", r.keyText(key), level, OneOf(key.Value, names))
		case values[key.Value].Is():
			r.Errorf(key, "%s is given twice; remove one", key.Value)
		default:
			values[key.Value] = r.value(value, &known[field])
		}
	}
	for _, f := range known {
		if f.Remedy != "" && !values[f.Name].Is() {
			r.Errorf(n, "%s is missing; %s", f.Name, f.Remedy)
		}
	}
	return values
}

func (r *Reader) value(n *yaml.Node, f *Field) Given {
	g := Given{Field: f, Node: n}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		r.Errorf(n, "%s has no value", f.Name)
		return g
	}
	var problem string
	switch g.Value, problem = f.Read(n); {
	case f.Kind == List && problem == "" && int64(len(n.Content)) < f.Min:
		r.Errorf(n, "%s is empty; want %s", f.Name, cmp.Or(f.Want, "at least one item"))
	case problem != "" && f.Kind == Word && n.Kind == yaml.ScalarNode:
		r.Errorf(n, "%s is empty", f.Name)
	case problem != "" && r.file.IsSecret:
		r.Errorf(n, "%s: want %s", f.Name, f.valuesFor(&yaml.Node{}))
	case problem != "":
		r.Errorf(n, "%s: %s", f.Name, problem)
	}
	return g
}

// Read reads a value outside an object, such as an item of a list.
func (r *Reader) Read(n *yaml.Node, f Field) Value { return r.value(Resolve(n), &f).Value }

// List returns the items of n, a list outside an object.
func (r *Reader) List(n *yaml.Node, f Field) []*yaml.Node { return r.Items(r.value(Resolve(n), &f)) }

// Items returns the items of a list.
func (r *Reader) Items(g Given) []*yaml.Node {
	if !g.Is() || g.Node.Kind != yaml.SequenceNode {
		return nil // the problem is reported
	}
	var items []*yaml.Node
	for _, item := range g.Node.Content {
		if !r.countNode(item) {
			break
		}
		items = append(items, Resolve(item))
	}
	return items
}

// countNode counts n. It returns false if the Reader must stop.
func (r *Reader) countNode(n *yaml.Node) bool {
	if r.nodes == maxNodes {
		r.Errorf(n, "file has more than %d keys and values (aliases count at each use)", maxNodes)
	}
	r.nodes++
	return r.nodes <= maxNodes && len(r.problems) < maxProblems
}

// keyText returns the text of a key for a message. It hides a key that can be a secret: {token:SECRET} has such a key.
func (r *Reader) keyText(key *yaml.Node) string {
	const maxKeyBytes = 15
	if r.file.IsSecret && (len(key.Value) > maxKeyBytes || strings.Contains(key.Value, ":")) {
		return ""
	}
	return " " + Display(key)
}

// Resolve returns the node that alias n repeats. If n is not an alias, Resolve returns n.
func Resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// Problem is a mistake in a file. A field of Problem is zero if its value is unknown.
type Problem struct {
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`   // the first line is 1
	Column int    `json:"column,omitempty"` // the first column is 1

	// Path is the path to the descriptor: `shop > service=checkout > path`.
	Path string `json:"path,omitempty"`

	// Reason says what is wrong, and how to mend it.
	Reason string `json:"reason"`
}

// String returns file:line:column: path: reason.
func (p Problem) String() string {
	place := FileLine(p.File, p.Line)
	if p.Line > 0 && p.Column > 0 {
		place += ":" + strconv.Itoa(p.Column)
	}
	parts := []string{strings.TrimPrefix(place, ":"), p.Path, p.Reason}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ": ")
}

// FileLine returns file:line, or only the file if line is 0.
func FileLine(file string, line int) string {
	if line == 0 {
		return file
	}
	return file + ":" + strconv.Itoa(line)
}

// Problems is a list of problems. Its error text has one problem a line.
type Problems []Problem

// Error implements error.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

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
	Name     string // the name of the file in problems, usually a path
	Data     []byte
	MaxBytes int

	// ItemsName is the word for the items of the file in the texts of problems, such as "tokens".
	ItemsName string

	// EmptyProblem is the problem of an empty file, such as "callers is missing". Without EmptyProblem, the file may be empty.
	EmptyProblem string

	// IsSecret reports that the file has secrets, so problems show no value.
	IsSecret bool
}

// Read calls readRoot with the root of the file. The error is Problems. If the file is not YAML, the error has one problem.
func (f File) Read(readRoot func(r *Reader, root *yaml.Node)) error {
	r := &Reader{file: f}
	r.parse(readRoot)
	if len(r.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(r.problems, func(a, b Problem) int { return cmp.Or(a.Line-b.Line, a.Column-b.Column) })
	return slices.Compact(r.problems)
}

func (r *Reader) parse(readRoot func(r *Reader, root *yaml.Node)) {
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
	case err != nil && f.EmptyProblem != "":
		r.Errorf(nil, "%v: %s", err, f.EmptyProblem)
	case err == nil:
		if doc.SecondRoot != nil {
			r.Errorf(doc.SecondRoot, "file has a second YAML document; put all %s into one", f.ItemsName)
		}
		readRoot(r, Resolve(doc.Root))
	}
}

// Errorf adds a problem at the place of n. If n is nil, the problem has no place.
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
type Values map[string]FieldValue

// FieldValue is a field with its value in an object. If the object lacks the field, the FieldValue is zero.
type FieldValue struct {
	*Field
	Value
	Node *yaml.Node
}

// IsPresent reports whether the object has the field, even if the value is invalid.
func (v FieldValue) IsPresent() bool { return v.Node != nil }

// Object reads n, a mapping with some of fields. If n is not a mapping, Object returns nil. objectName names the mapping in
// problems, such as "item of callers".
func (r *Reader) Object(n *yaml.Node, objectName string, fields []Field) Values {
	names := Names(fields)
	if n.Kind != yaml.MappingNode {
		got := Display(n)
		if r.file.IsSecret && n.Kind == yaml.ScalarNode {
			got = "a text"
		}
		r.Errorf(n, "%s: got %s, want a mapping with %s", objectName, got, strings.Join(names, ", "))
		return nil
	}
	values := Values{}
	for i := 0; i+1 < len(n.Content) && r.mayReadNode(n); i += 2 {
		key, value := Resolve(n.Content[i]), Resolve(n.Content[i+1])
		fieldIndex := slices.Index(names, key.Value)
		switch {
		case key.Kind != yaml.ScalarNode || fieldIndex < 0:
			r.Errorf(key, "unknown key%s in %s; want %s", r.keyText(key), objectName, OneOf(key.Value, names))
		case values[key.Value].IsPresent():
			r.Errorf(key, "%s is given twice; remove one", key.Value)
		default:
			values[key.Value] = r.readValue(value, &fields[fieldIndex])
		}
	}
	for _, f := range fields {
		if f.IsRequired() && !values[f.Name].IsPresent() {
			r.Errorf(n, "%s is missing; %s", f.Name, f.Remedy)
		}
	}
	return values
}

func (r *Reader) readValue(n *yaml.Node, f *Field) FieldValue {
	v := FieldValue{Field: f, Node: n}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		r.Errorf(n, "%s has no value", f.Name)
		return v
	}
	var problem string
	switch v.Value, problem = f.Read(n); {
	case f.Kind == List && problem == "" && int64(len(n.Content)) < f.Min:
		r.Errorf(n, "%s is empty; want %s", f.Name, cmp.Or(f.Want, "at least one item"))
	case problem != "" && f.Kind == NonEmpty && n.Kind == yaml.ScalarNode:
		r.Errorf(n, "%s is empty", f.Name)
	case problem != "" && r.file.IsSecret:
		r.Errorf(n, "%s: want %s", f.Name, f.validValuesFor(&yaml.Node{}))
	case problem != "":
		r.Errorf(n, "%s: %s", f.Name, problem)
	}
	return v
}

// Read reads a value that is not a field of an object, such as an item of a list. f describes the value.
func (r *Reader) Read(n *yaml.Node, f Field) Value { return r.readValue(Resolve(n), &f).Value }

// List returns the items of n, a list that is not a field of an object. f describes the list.
func (r *Reader) List(n *yaml.Node, f Field) []*yaml.Node {
	return r.Items(r.readValue(Resolve(n), &f))
}

// Items returns the items of list. If the object lacks the field, or the field is no list, Items returns nil.
func (r *Reader) Items(list FieldValue) []*yaml.Node {
	if !list.IsPresent() || list.Node.Kind != yaml.SequenceNode {
		return nil // readValue has reported the problem
	}
	var items []*yaml.Node
	for _, item := range list.Node.Content {
		if !r.mayReadNode(item) {
			break
		}
		items = append(items, Resolve(item))
	}
	return items
}

// mayReadNode counts n. It returns false if the Reader must stop.
func (r *Reader) mayReadNode(n *yaml.Node) bool {
	if r.nodes == maxNodes {
		r.Errorf(n, "file has more than %d keys and values (aliases count at each use)", maxNodes)
	}
	r.nodes++
	return r.nodes <= maxNodes && len(r.problems) < maxProblems
}

// keyText returns a space and the text of a key, for the text of a problem. It returns "" for a key that can be a secret, such as
// token:SECRET in {token:SECRET}, where the space after the colon is missing.
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

// Problem is a mistake in a file. Unknown fields are zero.
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

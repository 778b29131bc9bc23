package limitsfile

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/seed-81f232ab/rls/descriptors/condition"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

const (
	// maxListProblems bounds the problems reported of one list.
	maxListProblems = 20

	// maxConditions bounds the conditions of one key below one parent.
	maxConditions = 1000
)

// conditionGroup has the conditions of one key below one parent. A request is compared with them one after
// the other.
type conditionGroup struct {
	conditions []*condition.Condition

	// The place of the last condition.
	document *document
	node     *yaml.Node
	pos      *place
}

// checkConditions returns an error if a key below one parent has too many conditions, or conditions that take too
// many steps.
func checkConditions(conditions []*condition.Condition) error {
	if len(conditions) > maxConditions {
		return fmt.Errorf("more than %d conditions for one key; put their entries into one list, or combine them in one expression", maxConditions)
	}
	if steps := condition.MaxSteps(conditions); steps > condition.MaxCallSteps {
		return fmt.Errorf("the conditions for this key take up to %d steps for a value of 128 bytes, want at most %d; use fewer or simpler ones, or prefix and in", steps, condition.MaxCallSteps)
	}
	return nil
}

// conditionFields are the names of the fields of conditions.
var conditionFields = fieldsAt(notLevel)

// readCondition sets the condition of desc, if o has one. It returns false after reporting a
// mistake.
func (d *document) readCondition(desc *Descriptor, pos *place, o *object) bool {
	mistakes := d.mistakes
	c, field := d.condition(pos, o)
	if not := o.field("not"); not.valid() {
		inner := d.object(notLevel, pos, not.mappings...)
		switch negated, _ := d.condition(pos, inner); {
		case field.given():
			d.errorf(not.node, pos, "%s and not are both given; want one of them", field.row.Name)
		case negated != nil:
			c, field = negated.Not(), not
		case d.mistakes == mistakes && !inner.invalid():
			d.errorf(not.node, pos, "not is empty; want %s in it", fields.JoinOr(conditionFields))
		}
	}
	switch value := o.field("value"); {
	case !field.given():
	case value.given() && value.Text != "":
		d.errorf(value.node, pos, "value and %s are both given; want one of them", field.row.Name)
	case strings.Contains(desc.Key, "*"):
		d.errorf(field.node, pos, "%s needs a key without a *", field.row.Name)
	}
	if d.mistakes > mistakes || o.field("not").invalid {
		return false
	}
	for _, name := range conditionFields {
		if o.field(name).invalid {
			return false
		}
	}
	if c != nil {
		desc.Condition, desc.Value = c, c.String()
	}
	return true
}

// condition returns the condition in the fields of o, and its field. It returns a nil condition
// if there is none, and after reporting a mistake.
func (d *document) condition(pos *place, o *object) (c *condition.Condition, field value) {
	for _, name := range conditionFields {
		v := o.field(name)
		switch {
		case !v.given():
			continue
		case field.given():
			d.errorf(v.node, pos, "%s and %s are both given; want one of them", field.row.Name, name)
			return nil, field
		}
		field = v
		if v.invalid {
			continue
		}
		var err error
		switch name {
		case "cidr", "in":
			c = d.listCondition(pos, v)
		case "prefix":
			c, err = condition.Prefix(v.Text)
		case "regex":
			c, err = condition.Regex(v.Text, d.patterns)
		case "cel":
			c, err = d.expressions.condition(v.Text, d.patterns)
		}
		if err != nil {
			d.errorf(v.node, pos, "%s: %v", name, err)
		}
		if errors.Is(err, condition.ErrManyPatterns) {
			d.stop()
		}
	}
	return c, field
}

// checkEntryKeys checks that each entry that the expression of c names is one of keys: those of the
// descriptors above it and its own. It returns false after reporting a mistake.
func (d *document) checkEntryKeys(c *condition.Condition, pos *place, o *object, keys []string) bool {
	field := o.field("cel")
	if !field.given() {
		field = o.field("not")
	}
	for _, key := range c.EntryKeys() {
		isKnown := slices.ContainsFunc(keys, func(pattern string) bool {
			p := NewPattern(pattern)
			return pattern == key || strings.Contains(pattern, "*") && p.Match(key)
		})
		if !isKnown {
			d.errorf(field.node, pos, "cel: got the entry %s, which this descriptor and those above it don't have; want %s", fields.Printable(key), fields.OneOf(key, keys))
			return false
		}
	}
	return true
}

// maxExpressions bounds the different expressions of a Set. Each takes about 15 KB.
const maxExpressions = 1000

// expressionCache has the expressions of a Set, so that equal expressions are compiled once.
type expressionCache map[string]*condition.Condition

// condition returns the condition of an expression. It adds a new expression to p.
func (c expressionCache) condition(text string, p *condition.Patterns) (*condition.Condition, error) {
	if compiled := c[text]; compiled != nil {
		return compiled, nil
	}
	if len(c) == maxExpressions {
		return nil, fmt.Errorf("more than %d different expressions; use another condition, or one expression for several descriptors", maxExpressions)
	}
	compiled, err := condition.CEL(text, p)
	if err == nil {
		c[text] = compiled
	}
	return compiled, err
}

// listCondition returns the condition of a cidr or an in. It returns nil after reporting a
// mistake.
func (d *document) listCondition(pos *place, v value) *condition.Condition {
	var list *condition.List
	if v.node.Kind == yaml.MappingNode {
		list = d.listInFile(pos, v)
	} else {
		entries, ok := d.entries(pos, v)
		if !ok {
			return nil
		}
		var problems, warnings []condition.Problem
		list, problems, warnings = newList(v.row.Name, "", entries)
		for _, p := range problems {
			d.errorf(&yaml.Node{Line: p.Line, Column: p.Column}, pos, "%s: %s", v.row.Name, p.Reason)
		}
		for _, p := range warnings {
			d.warnf(&yaml.Node{Line: p.Line, Column: p.Column}, pos, "%s: %s", v.row.Name, p.Reason)
		}
	}
	switch {
	case list == nil:
		return nil
	case v.row.Name == "cidr":
		return condition.CIDR(list)
	}
	return condition.In(list)
}

// newList returns the list of the field with this name.
func newList(name, file string, entries []condition.Entry) (list *condition.List, problems, warnings []condition.Problem) {
	if name == "cidr" {
		return condition.NewNetworks(file, entries)
	}
	list, problems = condition.NewValues(file, entries)
	return list, problems, nil
}

// entries returns the texts of a list in the limits file. ok is false after reporting a mistake.
func (d *document) entries(pos *place, v value) (entries []condition.Entry, ok bool) {
	if len(v.node.Content) == 0 {
		d.errorf(v.node, pos, "%s: got an empty list, want at least one entry", v.row.Name)
		return nil, false
	}
	item := row{Field: fields.Field{Name: "entry of " + v.row.Name, Kind: fields.Text}}
	ok = true
	for _, n := range v.node.Content {
		if !d.visit(n) {
			return nil, false
		}
		n = fields.Resolve(n)
		switch text := d.value(&item, pos, n); {
		case text.node == nil:
			d.errorf(n, pos, "%s: got null, want text", item.Name)
			ok = false
		case text.invalid:
			ok = false
		default:
			entries = append(entries, condition.Entry{Text: text.Text, Line: n.Line, Column: n.Column})
		}
	}
	return entries, ok
}

// listInFile returns the list in the file that v names. It returns nil after reporting a mistake.
func (d *document) listInFile(pos *place, v value) *condition.List {
	file := d.object(listLevel, pos, v.node).field("file")
	switch {
	case file.invalid:
		return nil
	case file.Text == "":
		d.errorf(v.node, pos, "%s: the name of the file is missing; want {file: list.txt}", v.row.Name)
		return nil
	case d.lists == nil || d.lists.read == nil:
		d.errorf(file.node, pos, "%s: a list can be in a file only if the limits are in a file; write the entries here", v.row.Name)
		return nil
	}
	path := file.Text
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(d.file), path)
	}
	result := d.lists.list(v.row.Name, file.Text, path)
	if result.err != nil {
		d.errorf(file.node, pos, "%s: %v", v.row.Name, result.err)
	}
	for i, p := range result.problems {
		if i == maxListProblems {
			d.errorf(file.node, pos, "%s: %d more lines of %s have problems", v.row.Name, len(result.problems)-i, fields.Printable(path))
			break
		}
		d.mistakes++
		d.errs = append(d.errs, listProblem(path, pos, p))
	}
	for i, p := range result.warnings {
		if i == maxListProblems {
			break
		}
		d.warns = append(d.warns, listProblem(path, pos, p))
	}
	return result.list
}

func listProblem(path string, pos *place, p condition.Problem) pendingProblem {
	return pendingProblem{fields.Problem{File: path, Line: p.Line, Reason: p.Reason}, pos}
}

// listReader reads the files of lists, each once for all descriptors of a Set.
type listReader struct {
	read  func(path string) ([]byte, error) // nil if lists can't be in files
	lists map[[3]string]*listResult         // by field, name in the limits file, and path
}

// listResult is a list, or the reasons why there is none.
type listResult struct {
	list               *condition.List
	err                error
	problems, warnings []condition.Problem
}

func newListReader(o Options) *listReader {
	return &listReader{read: o.ReadList, lists: map[[3]string]*listResult{}}
}

// list returns the list of a field. name is the file in the limits file, and path where it is.
func (r *listReader) list(field, name, path string) *listResult {
	key := [3]string{field, name, path}
	result := r.lists[key]
	if result != nil {
		return result
	}
	result = &listResult{}
	r.lists[key] = result
	data, err := r.read(path)
	if err == nil && len(data) > DefaultMaxFileBytes {
		err = errors.New(fields.Printable(path) + ": the file is too large; maximum is 16 MiB")
	}
	if err != nil {
		result.err = err
		return result
	}
	entries, problems := condition.ParseFile(data)
	list, listProblems, warnings := newList(field, name, entries)
	result.problems, result.warnings = slices.Concat(problems, listProblems), warnings
	if len(result.problems) == 0 {
		result.list = list
	}
	return result
}

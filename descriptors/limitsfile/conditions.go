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
	// maxListProblems bounds the reported problems, and the reported warnings, of one list file.
	maxListProblems = 20

	// maxConditions bounds the conditions of one key below one parent.
	maxConditions = 1000
)

// conditionGroup has the conditions of one key below one parent. A request may have to test all of them.
type conditionGroup struct {
	conditions []*condition.Condition

	// document, node and pos are the place of the last condition.
	document *document
	node     *yaml.Node
	pos      *place
}

func checkConditions(conditions []*condition.Condition) error {
	if len(conditions) > maxConditions {
		return fmt.Errorf("more than %d conditions for one key; put their entries into one list, or combine them in one expression", maxConditions)
	}
	if steps := condition.MaxSteps(conditions); steps > condition.MaxCallSteps {
		return fmt.Errorf("the conditions for this key take up to %d steps for a value of 128 bytes, want at most %d; use fewer or simpler conditions, or prefix and in", steps, condition.MaxCallSteps)
	}
	return nil
}

// conditionFields are the names of the fields of conditions. The last name is "not".
var conditionFields = append(fieldsOf(notObject), "not")

// readCondition sets the condition of desc if o has a condition. If readCondition reports a problem, it returns false.
func (d *document) readCondition(desc *Descriptor, pos *place, o *object) bool {
	oldErrorCount := d.errorCount
	c, field := d.findCondition(pos, o)
	switch value := o.field("value"); {
	case !field.isPresent():
		return true
	case value.isPresent() && value.Text != "":
		d.errorf(value.node, pos, "value and %s are both given; want one of them", field.schema.Name)
	case strings.Contains(desc.Key, "*"):
		d.errorf(field.node, pos, "%s needs a key without a *", field.schema.Name)
	}
	if d.errorCount > oldErrorCount || c == nil {
		return false
	}
	desc.Condition, desc.Value = c, c.String()
	return true
}

// findCondition returns the condition in o, and the field of the condition. c is nil if o has no condition, or if the
// condition has a problem.
func (d *document) findCondition(pos *place, o *object) (c *condition.Condition, field value) {
	for _, name := range conditionFields {
		v := o.field(name)
		switch {
		case !v.isPresent():
			continue
		case field.isPresent():
			d.errorf(v.node, pos, "%s and %s are both given; want one of them", field.schema.Name, name)
			return nil, field
		}
		field = v
		if v.hasError {
			continue
		}
		var err error
		switch name {
		case "cidr", "in":
			c = d.readListCondition(pos, v)
		case "prefix":
			c, err = condition.Prefix(v.Text)
		case "regex":
			c, err = condition.Regex(v.Text, d.patterns)
		case "cel":
			c, err = d.expressions.condition(v.Text, d.patterns)
		case "not":
			innerObject := d.readObject(notObject, pos, v.mappings...)
			innerCondition, innerField := d.findCondition(pos, innerObject)
			if innerCondition != nil {
				c = innerCondition.Not()
			} else if !innerField.isPresent() && !innerObject.hasError() {
				d.errorf(v.node, pos, "not is empty; want %s in it", fields.JoinOr(fieldsOf(notObject)))
			}
		}
		if err != nil {
			d.errorf(v.node, pos, "%s: %v", name, err)
		}
		if errors.Is(err, condition.ErrTooManyPatterns) {
			d.stop()
		}
	}
	return c, field
}

// checkEntryKeys reports whether keys has each key that the expression of c names. If a key is missing, it reports a
// problem. A key with a * stands for all keys that it matches.
func (d *document) checkEntryKeys(c *condition.Condition, pos *place, o *object, keys []string) bool {
	field := o.field("cel")
	if !field.isPresent() {
		field = o.field("not")
	}
	for _, key := range c.EntryKeys() {
		isKnown := slices.ContainsFunc(keys, func(pattern string) bool {
			p := NewPattern(pattern)
			return pattern == key || strings.Contains(pattern, "*") && p.Match(key)
		})
		if !isKnown {
			d.errorf(field.node, pos, "cel: got the entry %s, which neither this descriptor nor its parents have; want %s", fields.Printable(key), fields.OneOf(key, keys))
			return false
		}
	}
	return true
}

// maxExpressions bounds the different expressions of a Set. An expression takes about 15 KB.
const maxExpressions = 1000

// expressionCache has the compiled expressions of a Set. The key is the text of the expression.
type expressionCache map[string]*condition.Condition

func (c expressionCache) condition(text string, p *condition.Patterns) (*condition.Condition, error) {
	if result := c[text]; result != nil {
		return result, nil
	}
	if len(c) == maxExpressions {
		return nil, fmt.Errorf("more than %d different expressions; use another condition, or one expression for several descriptors", maxExpressions)
	}
	result, err := condition.CEL(text, p)
	if err == nil {
		c[text] = result
	}
	return result, err
}

// newListCondition has the functions that return the condition of a list. The key is the name of the field.
var newListCondition = map[string]func(file string, entries []condition.Entry) (c *condition.Condition, problems, warnings fields.Problems){
	"cidr": condition.CIDR, "in": condition.In,
}

// readListCondition returns the condition of a cidr or an in. If it reports a problem, it returns nil.
func (d *document) readListCondition(pos *place, v value) *condition.Condition {
	if v.node.Kind == yaml.MappingNode {
		return d.readListFileCondition(pos, v)
	}
	oldErrorCount := d.errorCount
	entries := d.readEntries(pos, v)
	if d.errorCount > oldErrorCount {
		return nil
	}
	c, problems, warnings := newListCondition[v.schema.Name]("", entries)
	for _, p := range problems {
		d.errorf(&yaml.Node{Line: p.Line, Column: p.Column}, pos, "%s: %s", v.schema.Name, p.Reason)
	}
	for _, p := range warnings {
		d.warnf(&yaml.Node{Line: p.Line, Column: p.Column}, pos, "%s: %s", v.schema.Name, p.Reason)
	}
	return c
}

func (d *document) readEntries(pos *place, v value) (entries []condition.Entry) {
	if len(v.node.Content) == 0 {
		d.errorf(v.node, pos, "%s: got an empty list, want at least one entry", v.schema.Name)
	}
	item := schemaField{Field: fields.Field{Name: "entry of " + v.schema.Name, Kind: fields.Text}}
	for _, n := range v.node.Content {
		if !d.mayReadNode(n) {
			break
		}
		n = fields.Resolve(n)
		text := d.readValue(&item, pos, n)
		if text.node == nil {
			d.errorf(n, pos, "%s: got null, want text", item.Name)
		}
		entries = append(entries, condition.Entry{Text: text.Text, Line: n.Line, Column: n.Column})
	}
	return entries
}

// readListFileCondition returns the condition with the list in the file that v names, such as {file: deny.txt}.
func (d *document) readListFileCondition(pos *place, v value) *condition.Condition {
	file := d.readObject(listObject, pos, v.node).field("file")
	switch {
	case file.hasError:
		return nil
	case file.Text == "":
		d.errorf(v.node, pos, "%s: the name of the file is missing; want {file: list.txt}", v.schema.Name)
		return nil
	case d.options.ReadList == nil:
		d.errorf(file.node, pos, "%s: a list can be in a file only if the limits are in a file; write the entries here", v.schema.Name)
		return nil
	}
	path := file.Text
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(d.file), path)
	}
	list := d.readListFile(v.schema.Name, file.Text, path)
	if list.err != nil {
		d.errorf(file.node, pos, "%s: %v", v.schema.Name, list.err)
	}
	for i, p := range list.problems {
		if i == maxListProblems {
			d.errorf(file.node, pos, "%s: %d more lines of %s have problems", v.schema.Name, len(list.problems)-i, fields.Printable(path))
			break
		}
		d.errorCount++
		d.errors = append(d.errors, placedProblem{p, pos})
	}
	for _, p := range list.warnings[:min(len(list.warnings), maxListProblems)] {
		d.warnings = append(d.warnings, placedProblem{p, pos})
	}
	return list.condition
}

type fileList struct {
	condition          *condition.Condition // nil if the list has problems
	err                error                // the error of reading the file
	problems, warnings fields.Problems
}

// readListFile returns the list in the file at path. It reads each file once. name is the name of the file in the limits
// file.
func (s *parseState) readListFile(field, name, path string) *fileList {
	key := [3]string{field, name, path}
	if oldResult := s.lists[key]; oldResult != nil {
		return oldResult
	}
	result := &fileList{}
	s.lists[key] = result
	data, err := s.options.ReadList(path)
	if err == nil && len(data) > DefaultMaxFileBytes {
		err = errors.New(fields.Printable(path) + ": the file is too large; maximum is 16 MiB")
	}
	if err != nil {
		result.err = err
		return result
	}
	entries, problems := condition.ParseFile(data)
	c, listProblems, warnings := newListCondition[field](name, entries)
	result.problems, result.warnings = slices.Concat(problems, listProblems), warnings
	for i := range result.problems {
		result.problems[i].File = path
	}
	for i := range warnings {
		warnings[i].File = path
	}
	if len(result.problems) == 0 {
		result.condition = c
	}
	return result
}

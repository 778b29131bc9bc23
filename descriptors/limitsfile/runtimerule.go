package limitsfile

import (
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/seed-81f232ab/rls/descriptors/condition"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// RuntimeRule is a rule that was created at run time. It is immutable, except for what Descriptor
// keeps.
type RuntimeRule struct {
	Notes

	file        string // shown in problems
	node        *yaml.Node
	expressions expressionCache // of Descriptor, which reload calls after each change
}

// ruleExample is an example of a rule in problems.
const ruleExample = `{"rate_limit": {"unit": "minute", "requests_per_unit": 100}}`

// ParseRule reads a rule from a JSON object with the fields of a descriptor, except key, value
// and descriptors, and with notes. target is shown in problems. The error is Problems.
func ParseRule(target string, value []byte) (*RuntimeRule, error) {
	r := &RuntimeRule{file: shownName("rule", target), node: &yaml.Node{Kind: yaml.MappingNode}, expressions: expressionCache{}}
	d := newDocument(r.file, Options{})
	root := d.json(value, ruleExample)
	if root == nil {
		return nil, d.err()
	}
	notes := &yaml.Node{Kind: yaml.MappingNode}
	for i := 0; i+1 < len(root.Content); i += 2 {
		name, node := root.Content[i], root.Content[i+1]
		part := r.node
		switch {
		case slices.Contains(noteFields, name.Value), findRow(name.Value) == nil && fields.Nearest(name.Value, noteFields) != "":
			part = notes
		case name.Value == "key" || name.Value == "value":
			d.errorf(name, nil, "%s is in the target of a rule; leave it out of the rule", name.Value)
		case name.Value == "descriptors":
			d.errorf(name, nil, "descriptors: create each child as a rule of its own")
		case IsLimitField(name.Value):
			d.errorf(name, nil, "%s belongs in rate_limit; an example is %s", name.Value, ruleExample)
		}
		part.Content = append(part.Content, name, node)
	}
	r.Notes = d.notes(d.object(switchLevel, nil, notes))
	return r, d.err()
}

// IsLimitField reports whether a field belongs in rate_limit and not in the descriptor.
func IsLimitField(name string) bool { return slices.Contains(limitFieldNames, name) }

// limitFieldNames names the fields of rate_limit that are not fields of a descriptor.
var limitFieldNames = func() (names []string) {
	for _, name := range fieldsAt(rateLimitLevel) {
		if findRow(name).levels&descriptorLevel == 0 {
			names = append(names, name)
		}
	}
	return names
}()

// Descriptor returns the descriptor of the rule, with the keys and the value of its target. It
// is checked as in a limits file, and gets the defaults of the domain. path is shown in
// problems. The last of keys is the key of the descriptor. Descriptor adds the regular expressions of
// the rule to patterns, which has those of the domain. Calls must not overlap.
func (r *RuntimeRule) Descriptor(domain *Domain, path string, keys []string, value string, patterns *condition.Patterns) (*Descriptor, fields.Problems) {
	d := newDocument(r.file, Options{})
	d.domain, d.expressions, d.patterns = domain, r.expressions, patterns
	for _, c := range r.expressions { // of an earlier call
		if err := patterns.Add(c); err != nil {
			d.errorf(r.node, nil, "cel: %v", err)
		}
	}
	o := d.object(descriptorLevel, nil, r.node)
	desc := &Descriptor{Key: keys[len(keys)-1], Value: value, File: r.file}
	d.readCondition(desc, nil, o)
	if desc.Condition != nil {
		d.checkEntryKeys(desc.Condition, nil, o, keys)
	}
	if desc.Condition != nil && desc.Value != value {
		d.errorf(r.node, nil, "target: got the value %s, want the condition as the value: %s", strconv.Quote(value), strconv.Quote(desc.Value))
	}
	d.descriptor(desc, nil, o)
	if len(desc.Limits) == 0 && d.mistakes == 0 {
		d.errorf(r.node, nil, "rule has no limit; want rate_limit or rate_limits")
	}
	all := d.allProblems()
	for i := range all {
		all[i].Path = path
	}
	if len(all) > 0 {
		return nil, all
	}
	desc.Created = &r.Notes
	return desc, nil
}

// CheckSiblings returns an error if d would have too many conditions beside it in list, or conditions that
// take too many steps.
func CheckSiblings(d *Descriptor, list []*Descriptor) error {
	if d.Condition == nil {
		return nil
	}
	conditions := []*condition.Condition{d.Condition}
	for _, other := range list {
		if other.Condition != nil && other.Key == d.Key && other.Value != d.Value {
			conditions = append(conditions, other.Condition)
		}
	}
	return checkConditions(conditions)
}

// PatternsOf returns the regular expressions in list and below. Conditions that descriptors share count once.
func PatternsOf(list []*Descriptor) (sum condition.Patterns) {
	added := map[*condition.Condition]bool{}
	var add func(list []*Descriptor)
	add = func(list []*Descriptor) {
		for _, d := range list {
			if c := d.Condition; c != nil && !added[c] {
				added[c] = true
				_ = sum.Add(c) // the file was checked
			}
			add(d.Descriptors)
		}
	}
	add(list)
	return sum
}

// NewDescriptor returns a descriptor without limits.
func NewDescriptor(key, value string) *Descriptor {
	return &Descriptor{Key: key, Value: value, WildcardKey: strings.Contains(key, "*"), WildcardValue: strings.Contains(value, "*")}
}

// shownName returns the name that problems of a target show in place of a file.
func shownName(kind, target string) string {
	const maxBytes = 200
	name := fields.Printable(target)
	if len(name) > maxBytes {
		name = strings.ToValidUTF8(name[:maxBytes], "") + "…"
	}
	return strings.TrimSpace(kind + " " + name)
}

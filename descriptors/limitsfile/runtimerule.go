package limitsfile

import (
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
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
		case slices.Contains(noteFields, name.Value), findRow(name.Value) == nil && Nearest(name.Value, noteFields) != "":
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
// problems. The last of keys is the key of the descriptor. Calls must not overlap.
func (r *RuntimeRule) Descriptor(domain *Domain, path string, keys []string, value string) (*Descriptor, Problems) {
	d := newDocument(r.file, Options{})
	d.domain, d.expressions = domain, r.expressions
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
	all := d.all()
	for i := range all {
		all[i].Path = path
	}
	if len(all) > 0 {
		return nil, all
	}
	desc.Created = &r.Notes
	return desc, nil
}

// NewDescriptor returns a descriptor without limits.
func NewDescriptor(key, value string) *Descriptor {
	return &Descriptor{Key: key, Value: value, WildcardKey: strings.Contains(key, "*"), WildcardValue: strings.Contains(value, "*")}
}

// shownName returns the name that problems of a target show in place of a file.
func shownName(kind, target string) string {
	const maxBytes = 200
	name := Printable(target)
	if len(name) > maxBytes {
		name = strings.ToValidUTF8(name[:maxBytes], "") + "…"
	}
	return strings.TrimSpace(kind + " " + name)
}

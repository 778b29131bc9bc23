package limitsfile

import (
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// object is a mapping with fields that were checked against the schema.
type object struct {
	node   *yaml.Node
	values []value
}

// value is one field of an object. A field that is null has no node.
type value struct {
	schema   *schemaField // nil if the object lacks the field
	node     *yaml.Node
	hasError bool // a problem of the field is reported, and Value is zero

	fields.Value

	// mappings has all mappings of a field of kind fields.Object. An object has a field several times if the file repeats
	// the field, or if a merge key (<<) adds a mapping with the same field.
	mappings []*yaml.Node
}

func (v value) isPresent() bool { return v.schema != nil }

// isValid reports whether the object has the field and the field has no problem.
func (v value) isValid() bool { return v.schema != nil && !v.hasError }

// field returns the field of o with this name. If o lacks the field, the result has only the node of o, which is the place
// of a problem such as a missing field.
func (o *object) field(name string) value {
	if o == nil {
		return value{}
	}
	for i := range o.values {
		if o.values[i].schema.Name == name {
			return o.values[i]
		}
	}
	return value{node: o.node}
}

func (o *object) allValues() []value {
	if o == nil {
		return nil
	}
	return o.values
}

func (o *object) fieldOrDefault(defaults *object, name string) value {
	if v := o.field(name); v.isPresent() {
		return v
	}
	return defaults.field(name)
}

func (o *object) hasError() bool {
	return slices.ContainsFunc(o.values, func(v value) bool { return v.hasError })
}

// set sets a field, or removes it if v.node is nil.
func (o *object) set(v value) {
	i := slices.IndexFunc(o.values, func(old value) bool { return old.schema == v.schema })
	switch {
	case i < 0 && v.node != nil:
		o.values = append(o.values, v)
	case i >= 0 && v.node == nil:
		o.values = slices.Delete(o.values, i, i+1)
	case i >= 0:
		if v.schema.Kind == fields.Object {
			v.mappings = append(o.values[i].mappings, v.mappings...)
		}
		o.values[i] = v
	}
}

// readObject reads the mappings in nodes as one mapping. If a field occurs several times, the last field wins.
func (d *document) readObject(t objectType, pos *place, nodes ...*yaml.Node) *object {
	o := &object{node: nodes[0]}
	for _, n := range nodes {
		n = fields.Resolve(n)
		if n.Kind != yaml.MappingNode {
			d.errorf(n, pos, "%s: got %s, want a mapping", t, fields.Display(n))
			continue
		}
		d.fill(o, t, pos, n, 0)
	}
	return o
}

// fill sets the fields of o to the fields of the mapping n, in their order. As in go-yaml v2, a merge key overrides the
// fields before the merge key.
func (d *document) fill(o *object, t objectType, pos *place, n *yaml.Node, depth int) {
	if depth > maxNesting {
		d.errorf(n, pos, "merge keys (<<) are nested more than %d deep", maxNesting)
		return
	}
	o.values = slices.Grow(o.values, len(n.Content)/2)
	seenFields := make([]*schemaField, 0, 8)
	for i := 0; i+1 < len(n.Content); i += 2 {
		if !d.mayReadNode(n) {
			return
		}
		key, node := fields.Resolve(n.Content[i]), fields.Resolve(n.Content[i+1])
		if key.Kind == yaml.ScalarNode && key.ShortTag() == "!!merge" {
			if len(seenFields) > 0 {
				d.warnf(key, pos, "<< overrides the fields before it, as in envoyproxy/ratelimit; put it first")
			}
			for _, m := range d.mergedMappings(pos, node) {
				d.fill(o, t, pos, m, depth+1)
			}
			continue
		}
		f := d.findSchemaField(t, pos, n.Content[i], key)
		if f == nil {
			continue
		}
		v := d.readValue(f, pos, node)
		switch {
		case !slices.Contains(seenFields, f):
			seenFields = append(seenFields, f)
		case f.Kind == fields.Object && v.node != nil: // set merges the mappings
			d.warnf(n.Content[i], pos, "%s is given twice; of equal fields the last one counts", f.Name)
		default:
			d.warnf(n.Content[i], pos, "%s is given twice; the last one counts", f.Name)
		}
		o.set(v)
	}
}

// mergedMappings returns the mappings that a merge key names. The first mapping wins, so it is the last in the result.
func (d *document) mergedMappings(pos *place, n *yaml.Node) []*yaml.Node {
	sources := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		sources = n.Content
	}
	var mappings []*yaml.Node
	for _, source := range slices.Backward(sources) {
		if !d.mayReadNode(source) {
			break
		}
		if m := fields.Resolve(source); m.Kind == yaml.MappingNode {
			mappings = append(mappings, m)
		} else {
			d.errorf(source, pos, "merge key (<<): got %s, want a mapping or a list of mappings", fields.Display(m))
		}
	}
	return mappings
}

// findSchemaField returns the field of the schema with the name key. If objects of type t can't have the field, it reports a
// problem and returns nil. keyNode is the place of the key in the file, perhaps an alias.
func (d *document) findSchemaField(t objectType, pos *place, keyNode, key *yaml.Node) *schemaField {
	if key.Kind != yaml.ScalarNode {
		d.errorf(keyNode, pos, "key: got %s, want a word", fields.Display(key))
		return nil
	}
	f := findField(key.Value)
	if t == ruleObject {
		if reason := remedyForMisplacedField(key.Value); reason != "" {
			d.errorf(keyNode, pos, "%s %s", key.Value, reason)
			return nil
		}
	}
	switch {
	case f == nil || f.objects&t.typesInSameDocument() == 0:
		advice := "want " + fields.JoinOr(fieldsOf(t))
		if suggestion := fields.Nearest(key.Value, fieldsOf(t)); suggestion != "" {
			advice = "did you mean " + suggestion + "?"
		} else if suggestion := fields.Nearest(key.Value, fieldsOf(t.typesInSameDocument())); suggestion != "" {
			advice = "did you mean " + suggestion + ", which belongs in " + (findField(suggestion).objects & t.typesInSameDocument()).String() + "?"
		}
		d.errorf(keyNode, pos, "unknown key %s; %s", fields.Display(key), advice)
	case f.objects&t != 0:
		return f
	case f.isOnlyInRls:
		d.errorf(keyNode, pos, "%s has no meaning in %s; it belongs in %s", f.Name, t, f.objects&t.typesInSameDocument())
	default:
		d.warnf(keyNode, pos, "%s has no meaning in %s and is ignored; it belongs in %s", f.Name, t, f.objects&t.typesInSameDocument())
	}
	return nil
}

// readValue reads n, the value of the field f. If n is null, it returns a value without a node.
func (d *document) readValue(f *schemaField, pos *place, n *yaml.Node) value {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return value{schema: f}
	}
	v := value{schema: f, node: n}
	var reason string
	if v.Value, reason = f.Read(n); reason != "" {
		d.errorf(n, pos, "%s: %s", f.Name, reason)
		v.hasError = true
		return v
	}
	if text := strings.Trim(v.Text, "“”‘’"); len(v.Text) >= len(text)+2*len("“") {
		d.warnf(n, pos, "%s: got %s with curly quotes, which are part of the text; write %q", f.Name, fields.Printable(v.Text), text)
	}
	switch f.Kind {
	case fields.Object, fields.AnyMapping:
		v.mappings = []*yaml.Node{n}
	case fields.Count:
		if decimal, err := strconv.ParseInt(n.Value, 10, 64); err == nil && decimal != v.Number {
			d.warnf(n, pos, "%s: got %s, which YAML reads as the octal number %d; write %d or %d", f.Name, n.Value, v.Number, v.Number, decimal)
		}
	}
	return v
}

// readItems returns the items of the list v. Each item must be a mapping.
func (d *document) readItems(v value, pos *place) []*yaml.Node {
	if !v.isValid() {
		return nil
	}
	return d.mappingItems(v.schema, v.node.Content, pos)
}

// mappingItems returns the items of the field list that are mappings. It reports a problem for each other item.
func (d *document) mappingItems(list *schemaField, items []*yaml.Node, pos *place) []*yaml.Node {
	var mappings []*yaml.Node
	for _, n := range items {
		if !d.mayReadNode(n) {
			break
		}
		if m := fields.Resolve(n); m.Kind == yaml.MappingNode {
			mappings = append(mappings, m)
		} else {
			d.errorf(n, pos, "item of %s: got %s, want a mapping", list.Name, fields.Display(m))
		}
	}
	return mappings
}

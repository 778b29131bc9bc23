package limitsfile

import (
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// object is a mapping whose fields are checked against the schema.
type object struct {
	node   *yaml.Node
	fields []value
}

// value is one field of an object. A field that is null is left out.
type value struct {
	row     *row
	node    *yaml.Node
	invalid bool // the mistake is reported, and the fields below are zero

	text  string // textKind, choiceKind
	flag  bool
	num   uint32  // countKind, positiveKind
	ratio float64 // ratioKind, factorKind

	// mappings is all mappings given for an objectKind. A field can be given twice, or
	// beside a merge key: go-yaml then reads the second mapping into the first.
	mappings []*yaml.Node
}

// field returns the field of that name, or nil.
func (o *object) field(name string) *value {
	if o == nil {
		return nil
	}
	for i := range o.fields {
		if o.fields[i].row.name == name {
			return &o.fields[i]
		}
	}
	return nil
}

func (o *object) text(name string) string {
	if v := o.field(name); v != nil {
		return v.text
	}
	return ""
}

func (o *object) flag(name string) bool {
	v := o.field(name)
	return v != nil && v.flag
}

// invalid reports whether the field is given and wrong. The mistake is reported.
func (o *object) invalid(name string) bool {
	v := o.field(name)
	return v != nil && v.invalid
}

// nodeOf returns the node that problems of the field point to: its value, else the
// object.
func (o *object) nodeOf(name string) *yaml.Node {
	if v := o.field(name); v != nil {
		return v.node
	}
	return o.node
}

// set sets a field, or removes it if v.node is nil.
func (o *object) set(v value) {
	for i := range o.fields {
		if o.fields[i].row == v.row {
			if v.row.kind == objectKind && v.node != nil {
				v.mappings = append(o.fields[i].mappings, v.mappings...)
			}
			o.fields[i] = v
			if v.node == nil {
				o.fields = append(o.fields[:i], o.fields[i+1:]...)
			}
			return
		}
	}
	if v.node != nil {
		o.fields = append(o.fields, v)
	}
}

// object reads the mappings in nodes as one. The last of equal fields wins.
func (d *document) object(l level, pos *position, nodes ...*yaml.Node) *object {
	o := &object{node: nodes[0]}
	for _, n := range nodes {
		n = deref(n)
		if n.Kind != yaml.MappingNode {
			d.errorf(n, pos, "%s: got %s, want a mapping", l, display(n))
			continue
		}
		d.fill(o, l, pos, n, 0)
	}
	return o
}

// fill sets the fields of mapping n in their order, as go-yaml v2 does: a merge key that
// comes after a field overrides it.
func (d *document) fill(o *object, l level, pos *position, n *yaml.Node, depth int) {
	if depth > MaxDepth {
		d.errorf(n, pos, "merge keys (<<) are nested more than %d deep", MaxDepth)
		return
	}
	var seen []*row
	for i := 0; i+1 < len(n.Content); i += 2 {
		if !d.visit(n) {
			return
		}
		key, node := deref(n.Content[i]), deref(n.Content[i+1])
		if key.Kind == yaml.ScalarNode && key.ShortTag() == "!!merge" {
			if len(seen) > 0 {
				d.warnf(key, pos, "<< overrides the fields before it, as in envoyproxy/ratelimit; put it first")
			}
			d.merge(o, l, pos, node, depth)
			continue
		}
		r := d.row(l, pos, n.Content[i], key)
		if r == nil {
			continue
		}
		v, ok := d.value(r, pos, node)
		if !ok {
			v = value{row: r, node: node, invalid: true}
		}
		switch {
		case !slices.Contains(seen, r):
			seen = append(seen, r)
		case r.kind == objectKind && v.node != nil: // set merges them
			d.warnf(n.Content[i], pos, "%s is given twice; of equal fields the last one counts", r.name)
		default:
			d.warnf(n.Content[i], pos, "%s is given twice; the last one counts", r.name)
		}
		o.set(v)
	}
}

// merge sets the fields of n, which a merge key points to: a mapping, or a list of
// mappings of which the first wins.
func (d *document) merge(o *object, l level, pos *position, n *yaml.Node, depth int) {
	sources := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		sources = n.Content
	}
	for i := len(sources) - 1; i >= 0; i-- {
		if m := deref(sources[i]); m.Kind == yaml.MappingNode {
			d.fill(o, l, pos, m, depth+1)
		} else {
			d.errorf(sources[i], pos, "merge key (<<): got %s, want a mapping or a list of mappings", display(m))
		}
	}
}

// row returns the row of a key at level l. It returns nil after reporting that the key has
// no meaning there. keyNode is the key's place, which can be an alias.
func (d *document) row(l level, pos *position, keyNode, key *yaml.Node) *row {
	if key.Kind != yaml.ScalarNode {
		d.errorf(keyNode, pos, "key: got %s, want a word", display(key))
		return nil
	}
	r := findRow(key.Value)
	switch {
	case r == nil || r.levels&l.sameFormat() == 0:
		advice := "want " + joinOr(fieldsAt(l))
		if near := nearest(key.Value, fieldsAt(l)); near != "" {
			advice = "did you mean " + near + "?"
		} else if near := nearest(key.Value, fieldsAt(l.sameFormat())); near != "" {
			advice = "did you mean " + near + ", which belongs in " + (findRow(near).levels & l.sameFormat()).String() + "?"
		}
		d.errorf(keyNode, pos, "unknown key %s; %s", display(key), advice)
	case r.levels&l != 0:
		return r
	case r.extension:
		d.errorf(keyNode, pos, "%s has no meaning in %s; it belongs in %s", r.name, l, r.levels&l.sameFormat())
	default:
		d.warnf(keyNode, pos, "%s has no meaning in %s and is ignored; it belongs in %s", r.name, l, r.levels&l.sameFormat())
	}
	return nil
}

// value checks n against r. A null gives a value without a node.
func (d *document) value(r *row, pos *position, n *yaml.Node) (v value, ok bool) {
	v = value{row: r, node: n}
	reject := func(want string) (value, bool) { //nolint:unparam // so that it can be returned
		if n.Kind == yaml.ScalarNode && !isPlain(n) && r.kind >= flagKind && r.kind <= factorKind {
			want += " without quotes"
		}
		d.errorf(n, pos, "%s: got %s, want %s", r.name, display(n), want)
		return value{}, false
	}
	tag := ""
	if n.Kind == yaml.ScalarNode {
		if tag = scalarTag(n); tag == "!!null" {
			return value{row: r}, true
		}
	}
	switch r.kind {
	case objectKind, freeKind:
		if n.Kind != yaml.MappingNode {
			return reject("a mapping")
		}
		v.mappings = []*yaml.Node{n}
	case listKind:
		if n.Kind != yaml.SequenceNode {
			return reject("a list")
		}
	case textKind:
		if n.Kind != yaml.ScalarNode {
			return reject("text")
		}
		if _, isInt := yamlInt(n.Value); tag == "!!float" || tag == "!!int" && !isInt {
			d.errorf(n, pos, "%s: got a number, want text; write %q in quotes", r.name, n.Value)
			return value{}, false
		}
		if v.text, ok = yamlText(n); !ok {
			return reject("text in UTF-8")
		}
	case flagKind:
		if v.flag, ok = yamlBool(n.Value); !ok || tag != "!!bool" {
			return reject("true or false")
		}
	case countKind, positiveKind:
		least := int64(r.kind) - int64(countKind)
		i, isInt := yamlInt(n.Value)
		if tag != "!!int" || !isInt || i < least || i > 1<<32-1 {
			return reject("a whole number from " + strconv.FormatInt(least, 10) + " to 4294967295")
		}
		v.num = uint32(i)
	case ratioKind, factorKind:
		most := 1
		if r.kind == factorKind {
			most = maxFactor
		}
		f, err := strconv.ParseFloat(n.Value, 64)
		if tag != "!!float" && tag != "!!int" || err != nil || !(f > 0 && f <= float64(most)) {
			return reject("a number over 0 and up to " + strconv.Itoa(most))
		}
		v.ratio = f
	case choiceKind:
		if n.Kind != yaml.ScalarNode {
			return reject(joinOr(r.choices))
		}
		for _, c := range r.choices {
			if c == n.Value {
				v.text = c
				return v, true
			}
		}
		d.errorf(n, pos, "%s: got %s, want %s", r.name, display(n), OneOf(n.Value, r.choices))
		return value{}, false
	}
	return v, true
}

// items returns the mappings of a list.
func (d *document) items(v *value, pos *position) []*yaml.Node {
	if v == nil || v.invalid {
		return nil
	}
	var items []*yaml.Node
	for _, n := range v.node.Content {
		if !d.visit(n) {
			break
		}
		if m := deref(n); m.Kind == yaml.MappingNode {
			items = append(items, m)
		} else {
			d.errorf(n, pos, "item of %s: got %s, want a mapping", v.row.name, display(m))
		}
	}
	return items
}

func deref(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

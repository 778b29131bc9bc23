package limitsfile

import (
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// object is a mapping of a limits file, its fields checked against the schema.
type object struct {
	node   *yaml.Node
	fields []value
}

// value is one field of an object. What is null is not there.
type value struct {
	row  *row
	node *yaml.Node
	bad  bool // reported already; the rest is zero

	text  string // textKind, choiceKind
	flag  bool
	num   uint32  // countKind, positiveKind
	ratio float64 // ratioKind, factorKind

	// parts are all mappings given for an objectKind: go-yaml reads a field that
	// is given again, or given beside a merge key, into what is there already.
	parts []*yaml.Node
}

// field returns the field of that name, nil if it is absent.
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

// bad tells whether the field is there, but wrong, as is reported already.
func (o *object) bad(name string) bool {
	v := o.field(name)
	return v != nil && v.bad
}

// at is where to point for the field: at its value, else at the object.
func (o *object) at(name string) *yaml.Node {
	if v := o.field(name); v != nil {
		return v.node
	}
	return o.node
}

// set gives a field its value, or none if v.node is nil.
func (o *object) set(v value) {
	for i := range o.fields {
		if o.fields[i].row == v.row {
			if v.row.kind == objectKind && v.node != nil {
				v.parts = append(o.fields[i].parts, v.parts...)
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

// object reads the mappings in nodes as one, the last of equal fields winning.
func (d *document) object(l level, at *place, nodes ...*yaml.Node) *object {
	o := &object{node: nodes[0]}
	for _, n := range nodes {
		n = deref(n)
		if n.Kind != yaml.MappingNode {
			d.errorf(n, at, "%s: got %s, want a mapping", l, shown(n))
			continue
		}
		d.fill(o, l, at, n, 0)
	}
	return o
}

// fill sets the fields of mapping n in their order, merge keys in their place,
// as go-yaml v2 does: a merge key after a field overrides it.
func (d *document) fill(o *object, l level, at *place, n *yaml.Node, depth int) {
	if depth > MaxDepth {
		d.errorf(n, at, "merge keys (<<) are nested more than %d deep", MaxDepth)
		return
	}
	var own []*row
	for i := 0; i+1 < len(n.Content); i += 2 {
		if !d.visit(n) {
			return
		}
		key, node := deref(n.Content[i]), deref(n.Content[i+1])
		if key.Kind == yaml.ScalarNode && key.ShortTag() == "!!merge" {
			if len(own) > 0 {
				d.warnf(key, at, "<< overrides the fields before it, as in envoyproxy/ratelimit; put it first")
			}
			d.merge(o, l, at, node, depth)
			continue
		}
		r := d.row(l, at, n.Content[i], key)
		if r == nil {
			continue
		}
		v, ok := d.value(r, at, node)
		if !ok {
			v = value{row: r, node: node, bad: true}
		}
		switch {
		case !slices.Contains(own, r):
			own = append(own, r)
		case r.kind == objectKind && v.node != nil: // set puts them together
			d.warnf(n.Content[i], at, "%s is given twice; of equal fields the last one counts", r.name)
		default:
			d.warnf(n.Content[i], at, "%s is given twice; the last one counts", r.name)
		}
		o.set(v)
	}
}

// merge sets the fields of what a merge key points to: a mapping, or a list of
// them, of which the first wins.
func (d *document) merge(o *object, l level, at *place, n *yaml.Node, depth int) {
	sources := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		sources = n.Content
	}
	for i := len(sources) - 1; i >= 0; i-- {
		if m := deref(sources[i]); m.Kind == yaml.MappingNode {
			d.fill(o, l, at, m, depth+1)
		} else {
			d.errorf(sources[i], at, "merge key (<<): got %s, want a mapping or a list of mappings", shown(m))
		}
	}
}

// row finds what the schema says of a key at l; nil, and a problem, if it has no
// business there.
func (d *document) row(l level, at *place, place, key *yaml.Node) *row {
	if key.Kind != yaml.ScalarNode {
		d.errorf(place, at, "key: got %s, want a word", shown(key))
		return nil
	}
	r := rowNamed(key.Value)
	switch {
	case r == nil || r.at&l.kin() == 0:
		advice := "want " + orList(fieldsAt(l))
		if near := nearest(key.Value, fieldsAt(l)); near != "" {
			advice = "did you mean " + near + "?"
		} else if near := nearest(key.Value, fieldsAt(l.kin())); near != "" {
			advice = "did you mean " + near + ", which belongs in " + (rowNamed(near).at & l.kin()).String() + "?"
		}
		d.errorf(place, at, "unknown key %s; %s", shown(key), advice)
	case r.at&l != 0:
		return r
	case r.ours:
		d.errorf(place, at, "%s has no meaning in %s; it belongs in %s", r.name, l, r.at&l.kin())
	default:
		d.warnf(place, at, "%s has no meaning in %s and is ignored; it belongs in %s", r.name, l, r.at&l.kin())
	}
	return nil
}

// value checks n against r. A null gives a value without node.
func (d *document) value(r *row, at *place, n *yaml.Node) (v value, ok bool) {
	v = value{row: r, node: n}
	wrong := func(want string) (value, bool) { //nolint:unparam // so that it can be returned
		if n.Kind == yaml.ScalarNode && !plain(n) && r.kind >= flagKind && r.kind <= factorKind {
			want += " without quotes"
		}
		d.errorf(n, at, "%s: got %s, want %s", r.name, shown(n), want)
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
			return wrong("a mapping")
		}
		v.parts = []*yaml.Node{n}
	case listKind:
		if n.Kind != yaml.SequenceNode {
			return wrong("a list")
		}
	case textKind:
		if n.Kind != yaml.ScalarNode {
			return wrong("text")
		}
		if _, isInt := yamlInt(n.Value); tag == "!!float" || tag == "!!int" && !isInt {
			d.errorf(n, at, "%s: got a number, want text; write %q in quotes", r.name, n.Value)
			return value{}, false
		}
		if v.text, ok = yamlText(n); !ok {
			return wrong("text in UTF-8")
		}
	case flagKind:
		if v.flag, ok = yamlBool(n.Value); !ok || tag != "!!bool" {
			return wrong("true or false")
		}
	case countKind, positiveKind:
		least := int64(r.kind) - int64(countKind)
		i, isInt := yamlInt(n.Value)
		if tag != "!!int" || !isInt || i < least || i > 1<<32-1 {
			return wrong("a whole number from " + strconv.FormatInt(least, 10) + " to 4294967295")
		}
		v.num = uint32(i)
	case ratioKind, factorKind:
		most := 1
		if r.kind == factorKind {
			most = maxFactor
		}
		f, err := strconv.ParseFloat(n.Value, 64)
		if tag != "!!float" && tag != "!!int" || err != nil || !(f > 0 && f <= float64(most)) {
			return wrong("a number over 0 and up to " + strconv.Itoa(most))
		}
		v.ratio = f
	case choiceKind:
		if n.Kind != yaml.ScalarNode {
			return wrong(orList(r.choices))
		}
		for _, c := range r.choices {
			if c == n.Value {
				v.text = c
				return v, true
			}
		}
		d.errorf(n, at, "%s: got %s, want %s", r.name, shown(n), OneOf(n.Value, r.choices))
		return value{}, false
	}
	return v, true
}

// items reads a list of mappings.
func (d *document) items(v *value, at *place) []*yaml.Node {
	if v == nil || v.bad {
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
			d.errorf(n, at, "item of %s: got %s, want a mapping", v.row.name, shown(m))
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

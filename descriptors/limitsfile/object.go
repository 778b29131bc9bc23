package limitsfile

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/seed-81f232ab/rls/limit"
)

// object is a mapping whose fields are checked against the schema.
type object struct {
	node   *yaml.Node
	fields []value
}

// value is one field of an object. A field that is null is left out.
type value struct {
	row     *row // of the schema
	node    *yaml.Node
	invalid bool // a mistake is reported, and the fields below are zero

	text   string // textKind, choiceKind
	flag   bool
	num    uint32  // countKind
	ratio  float64 // ratioKind
	micros int64   // durationKind, in microseconds

	// mappings has all mappings given for an objectKind. A field can be given twice, or
	// beside a merge key: go-yaml then reads the second mapping into the first.
	mappings []*yaml.Node
}

// given reports whether the field is in its object.
func (v value) given() bool { return v.row != nil }

// valid reports whether the field is in its object and has no mistake.
func (v value) valid() bool { return v.row != nil && !v.invalid }

// field returns the field of that name. For a field that is not given, it returns a zero
// value with the node of o, where problems of that field are shown.
func (o *object) field(name string) value {
	if o == nil {
		return value{}
	}
	for i := range o.fields {
		if o.fields[i].row.name == name {
			return o.fields[i]
		}
	}
	return value{node: o.node}
}

// all returns the fields of o, which can be nil.
func (o *object) all() []value {
	if o == nil {
		return nil
	}
	return o.fields
}

// fieldOr returns the named field of o, or else of defaults.
func (o *object) fieldOr(defaults *object, name string) value {
	if v := o.field(name); v.given() {
		return v
	}
	return defaults.field(name)
}

// invalid reports whether a field of o has a mistake.
func (o *object) invalid() bool {
	return slices.ContainsFunc(o.fields, func(v value) bool { return v.invalid })
}

// set sets a field, or removes it if v.node is nil.
func (o *object) set(v value) {
	i := slices.IndexFunc(o.fields, func(old value) bool { return old.row == v.row })
	switch {
	case i < 0 && v.node != nil:
		o.fields = append(o.fields, v)
	case i >= 0 && v.node == nil:
		o.fields = slices.Delete(o.fields, i, i+1)
	case i >= 0:
		if v.row.kind == objectKind {
			v.mappings = append(o.fields[i].mappings, v.mappings...)
		}
		o.fields[i] = v
	}
}

// object reads the mappings in nodes as one mapping. The last of equal fields wins.
func (d *document) object(l level, pos *place, nodes ...*yaml.Node) *object {
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
func (d *document) fill(o *object, l level, pos *place, n *yaml.Node, depth int) {
	if depth > MaxDepth {
		d.errorf(n, pos, "merge keys (<<) are nested more than %d deep", MaxDepth)
		return
	}
	o.fields = slices.Grow(o.fields, len(n.Content)/2)
	seen := make([]*row, 0, 8)
	for i := 0; i+1 < len(n.Content); i += 2 {
		if !d.visit(n) {
			return
		}
		key, node := deref(n.Content[i]), deref(n.Content[i+1])
		if key.Kind == yaml.ScalarNode && key.ShortTag() == "!!merge" {
			if len(seen) > 0 {
				d.warnf(key, pos, "<< overrides the fields before it, as in envoyproxy/ratelimit; put it first")
			}
			for _, m := range d.mergeSources(pos, node) {
				d.fill(o, l, pos, m, depth+1)
			}
			continue
		}
		r := d.row(l, pos, n.Content[i], key)
		if r == nil {
			continue
		}
		v := d.value(r, pos, node)
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

// mergeSources returns the mappings that a merge key points to. The first one wins, so it
// is the last one returned.
func (d *document) mergeSources(pos *place, n *yaml.Node) []*yaml.Node {
	sources := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		sources = n.Content
	}
	var mappings []*yaml.Node
	for _, source := range slices.Backward(sources) {
		if !d.visit(source) {
			break
		}
		if m := deref(source); m.Kind == yaml.MappingNode {
			mappings = append(mappings, m)
		} else {
			d.errorf(source, pos, "merge key (<<): got %s, want a mapping or a list of mappings", display(m))
		}
	}
	return mappings
}

// row returns the row of a key at level l. It returns nil after reporting that the key has
// no meaning there. keyNode is the key's place, which can be an alias.
func (d *document) row(l level, pos *place, keyNode, key *yaml.Node) *row {
	if key.Kind != yaml.ScalarNode {
		d.errorf(keyNode, pos, "key: got %s, want a word", display(key))
		return nil
	}
	r := findRow(key.Value)
	switch {
	case r == nil || r.levels&l.sameFormat() == 0:
		advice := "want " + joinOr(fieldsAt(l))
		if near := Nearest(key.Value, fieldsAt(l)); near != "" {
			advice = "did you mean " + near + "?"
		} else if near := Nearest(key.Value, fieldsAt(l.sameFormat())); near != "" {
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

// value checks n against r. For a null, it returns a value without a node.
func (d *document) value(r *row, pos *place, n *yaml.Node) value {
	v, invalid := value{row: r, node: n}, value{row: r, node: n, invalid: true}
	reject := func(want string) value {
		if n.Kind == yaml.ScalarNode && !isPlain(n) && r.kind >= flagKind && r.kind <= ratioKind {
			want += " without quotes"
		}
		d.errorf(n, pos, "%s: got %s, want %s", r.name, display(n), want)
		return invalid
	}
	var ok bool
	tag := ""
	if n.Kind == yaml.ScalarNode {
		if tag = scalarTag(n); tag == "!!null" {
			return value{row: r}
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
	case entriesKind:
		if n.Kind != yaml.SequenceNode && n.Kind != yaml.MappingNode {
			return reject("a list, or a mapping with the name of a file, as in {file: list.txt}")
		}
	case textKind:
		if n.Kind != yaml.ScalarNode {
			return reject("text")
		}
		isNumber := tag == "!!float"
		if tag == "!!int" {
			_, isInt := yamlInt(n.Value)
			isNumber = !isInt
		}
		if isNumber {
			d.errorf(n, pos, "%s: got a number, want text; write %q in quotes", r.name, n.Value)
			return invalid
		}
		if v.text, ok = yamlText(n); !ok {
			return reject("text in UTF-8")
		}
	case flagKind:
		if v.flag, ok = yamlBool(n.Value); !ok || tag != "!!bool" {
			return reject("true or false")
		}
	case countKind:
		i, isInt := yamlInt(n.Value)
		if tag != "!!int" || !isInt || i < r.minValue || i > math.MaxUint32 {
			return reject(fmt.Sprintf("a whole number from %d to %d", r.minValue, uint32(math.MaxUint32)))
		}
		v.num = uint32(i)
	case ratioKind:
		f, err := strconv.ParseFloat(n.Value, 64)
		if tag != "!!float" && tag != "!!int" || err != nil || !(f > 0 && f <= r.maxValue) {
			return reject("a number over 0 and up to " + strconv.FormatFloat(r.maxValue, 'f', -1, 64))
		}
		v.ratio = f
	case durationKind:
		span, err := time.ParseDuration(n.Value)
		micros := span.Microseconds()
		if err != nil || micros < r.minMicros || micros > r.maxMicros {
			return reject(fmt.Sprintf("a time from %s to %s, such as 30s", limit.DurationText(r.minMicros), limit.DurationText(r.maxMicros)))
		}
		v.micros = micros
	case choiceKind:
		if !slices.Contains(r.choices, n.Value) {
			return reject(OneOf(n.Value, r.choices))
		}
		v.text = n.Value
	}
	return v
}

// items returns the mappings of a list.
func (d *document) items(v value, pos *place) []*yaml.Node {
	if !v.valid() {
		return nil
	}
	return d.mappings(v.row, v.node.Content, pos)
}

// mappings returns the mappings of items, which are in a list that belongs to r.
func (d *document) mappings(r *row, items []*yaml.Node, pos *place) []*yaml.Node {
	var mappings []*yaml.Node
	for _, n := range items {
		if !d.visit(n) {
			break
		}
		if m := deref(n); m.Kind == yaml.MappingNode {
			mappings = append(mappings, m)
		} else {
			d.errorf(n, pos, "item of %s: got %s, want a mapping", r.name, display(m))
		}
	}
	return mappings
}

func deref(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

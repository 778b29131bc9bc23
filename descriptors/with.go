package descriptors

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

// Outcome is what became of an Override.
type Outcome struct {
	// Problems are why it isn't in force: none if it is.
	Problems Problems

	// Path is the way to its descriptor: `shop > tenant=acme`.
	Path string

	// Was and Is are the limits there without and with it, in words.
	Was, Is string
}

// With is c with overrides, of different targets, and what became of each. Those
// that don't fit are left out. c stays as it is.
//
// Of the overrides that fit a request all hold, whatever their order here: those for one
// value lie over those for any. Of two that are for one value in different entries, as
// tenant=acme > path and tenant > path=/a are, the one whose entry is the earlier lies
// over the other.
func (c *Config) With(overrides []*Override) (*Config, []Outcome) {
	is := &overlay{c.clone(), maxMade}
	outcomes := make([]Outcome, len(overrides))
	ranks := make([]rank, len(overrides))
	for i, o := range overrides {
		ranks[i] = rank{i, c.values(o.Target), o.Target.String()}
	}
	slices.SortFunc(ranks, func(a, b rank) int {
		return cmp.Or(slices.Compare(a.values, b.values), cmp.Compare(a.target, b.target))
	})
	for _, r := range ranks {
		outcomes[r.index] = is.override(overrides[r.index])
	}
	return is.Config, outcomes
}

// maxMade bounds the descriptors made for single values, with those below them that
// they don't share, and so memory.
const maxMade = 100_000

// overlay is a Config to which overrides are added; it isn't in force yet.
type overlay struct {
	*Config
	room int // how many descriptors can still be made for single values
}

// rank is the place of an override in the order of application.
type rank struct {
	index  int
	values []int
	target string
}

// values has for each entry of t a 1 if it stands for one value of many, else a 0. A
// descriptor that is made for one value is a copy of another with all below it, so
// those that change something there without being for that value must come first.
func (c *Config) values(t Target) []int {
	d := c.Domain(t.Domain)
	if d == nil {
		return nil
	}
	var values []int
	for at, i := &d.root, 0; at != nil && i < len(t.Entries); i++ {
		met, exact := at.meet(t.Entries[i])
		if met == nil {
			break
		}
		if exact {
			values = append(values, 0)
		} else {
			values = append(values, 1)
		}
		at = met.children
	}
	return values
}

// meet returns the descriptor that has e's key and value as its texts, else the one
// that requests with e meet; nil if there is none.
func (t *tier) meet(e *ratelimitv3.RateLimitDescriptor_Entry) (n *node, exact bool) {
	if n = t.exact(e.GetKey(), e.GetValue()); n != nil {
		return n, true
	}
	if e.GetValue() == "" || strings.Contains(e.GetKey()+e.GetValue(), "*") {
		return nil, false
	}
	return t.find(e.GetKey(), e.GetValue()), false
}

// override puts o in force.
func (c *overlay) override(o *Override) Outcome {
	d := overrideDocument(o.Target.String())
	found, at := c.lookUp(d, o.Target)
	if found == nil {
		return Outcome{Problems: d.all()}
	}
	d.domain = at.domain
	out := Outcome{Path: at.path(), Was: found.describe()}
	limits := o.change(d, at, found.limits)
	if out.Problems = d.all(); len(out.Problems) > 0 {
		return out
	}
	ns := c.place(&at.domain.root, &node{domain: at.domain}, o.Target.Entries)
	if len(ns) == 0 {
		d.errorf(nil, at, "overrides for single values would take more than %d descriptors, with those below them", maxMade)
		out.Problems = d.all()
		return out
	}
	all := [][]*stated{limits}
	for _, n := range ns[1:] { // which have overrides of their own, below it or beside
		all = append(all, o.change(d, n, n.limits))
	}
	if out.Problems = d.all(); len(out.Problems) > 0 {
		return out
	}
	for i, n := range ns {
		n.limits = all[i]
		if v := o.fields.field("shadow_mode"); v != nil {
			n.shadowMode = v.flag
		}
		n.compileRule()
	}
	n := ns[0]
	out.Is = n.describe()
	return out
}

// lookUp finds the descriptor that t's limits are to be taken from, nil if there is
// none, and a stand-in for the one that t names, to tell its path.
func (c *Config) lookUp(d *document, t Target) (found, at *node) {
	domain := c.Domain(t.Domain)
	if domain == nil {
		advice := "there are no limits at all"
		if len(c.domains) > 0 {
			advice = oneOf(t.Domain, slices.Sorted(maps.Keys(c.domains)))
		}
		d.errorf(nil, nil, "there is no domain %s; %s", printable(t.Domain), advice)
		return nil, nil
	}
	at = &node{domain: domain}
	below := &domain.root
	for i, e := range t.Entries {
		if below == nil || len(below.nodes) == 0 {
			d.errorf(nil, at, "there are no descriptors below it")
			return nil, nil
		}
		if found, _ = below.meet(e); found == nil {
			d.errorf(nil, at, "no descriptor %s; %s", printable(entryText(e)), below.advice(e))
			return nil, nil
		}
		at = &node{domain: domain, parent: at, key: e.GetKey(), value: e.GetValue(), nth: i + 1}
		below = found.children
	}
	return found, at
}

// place returns the descriptors of entries in at, which is below parent: first the one
// that they name, which is made if requests meet one that is for others too; then its
// copies for single values, and those below copies on the way. There are none if there
// is no room. lookUp has found the first.
func (c *overlay) place(at *tier, parent *node, entries []*ratelimitv3.RateLimitDescriptor_Entry) []*node {
	e, last := entries[0], len(entries) == 1
	n, exact := at.meet(e)
	need := 0
	if !exact {
		need = 1
	}
	if !last && (!exact || n.borrows) {
		need += n.children.size()
	}
	if need > c.room {
		return nil
	}
	if !exact {
		c.room--
		of := n
		n = of.forOne(parent, e.GetKey(), e.GetValue())
		n.rename()
		of.copies = append(of.copies, n)
		at.add(n)
	}
	if last {
		return append([]*node{n}, n.copies...)
	}
	if n.borrows {
		n.own(&c.room) // there is room
		n.children.each((*node).rename)
	}
	all := c.place(n.children, n, entries[1:])
	for _, m := range n.copies {
		if !m.borrows && len(all) > 0 {
			all = append(all, c.place(m.children, m, entries[1:])...)
		}
	}
	return all
}

// rename gives n's rule the names that come of its place, unless it has a counter in
// common with other values: it stays in that until an override is for it.
func (n *node) rename() {
	if n.rule == nil || !n.rule.shares {
		n.compileRule()
	}
}

func entryText(e *ratelimitv3.RateLimitDescriptor_Entry) string {
	if e.GetValue() == "" {
		return e.GetKey()
	}
	return e.GetKey() + "=" + e.GetValue()
}

// advice says which descriptors of t could have been meant.
func (t *tier) advice(e *ratelimitv3.RateLimitDescriptor_Entry) string {
	const most = 10
	if strings.Contains(e.GetKey()+e.GetValue(), "*") {
		return "a pattern must be written as in the limits file"
	}
	text, name := entryText(e), (*node).label
	if t.keys[e.GetKey()] == nil {
		text, name = e.GetKey(), func(n *node) string { return printable(n.key) }
	}
	var names []string
	for _, n := range t.nodes {
		if is := name(n); !slices.Contains(names, is) {
			names = append(names, is)
		}
		if len(names) > most {
			return fmt.Sprintf("there are %s and more", strings.Join(names[:most], ", "))
		}
	}
	return oneOf(text, names)
}

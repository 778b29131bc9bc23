package descriptors

import (
	"math"
	"strings"
)

// tier is the descriptors of one level of the tree, below one parent.
type tier struct {
	nodes []*node // in file order
	keys  map[string]*group
	wild  wildcards // those with a * in the key
}

// group is the descriptors of a tier that have one and the same key.
type group struct {
	values map[string]*node // those with a value, wildcards by their text as well
	any    *node            // the one without a value
	wild   wildcards        // those with a * in the value but none in the key
}

var noGroup group

// add puts n last. It returns the node that n would double, if there is one.
func (t *tier) add(n *node) (double *node) {
	if t.keys == nil {
		t.keys = map[string]*group{}
	}
	g := t.keys[n.key]
	if g == nil {
		g = &group{}
		t.keys[n.key] = g
	}
	if n.value == "" {
		if g.any != nil {
			return g.any
		}
		g.any = n
	} else {
		if double = g.values[n.value]; double != nil {
			return double
		}
		if g.values == nil {
			g.values = map[string]*node{}
		}
		g.values[n.value] = n
	}
	t.nodes = append(t.nodes, n)
	return nil
}

// index makes ready for find, here and below; add comes no more.
func (t *tier) index() {
	for _, g := range t.keys {
		g.pack()
	}
	for i, n := range t.nodes {
		if n.children != nil && !n.borrows {
			n.children.index()
		}
		value := anything
		if n.value != "" {
			value = newGlob(n.value)
		}
		switch {
		case n.keyWild:
			t.wild.add(wildcard{newGlob(n.key), value, i, n})
		case n.valueWild:
			t.keys[n.key].wild.add(wildcard{anything, value, i, n})
		}
	}
}

// pack lays the texts of g.values side by side: a large map is looked up in less
// time if what it compares with stays in the processor's caches.
func (g *group) pack() {
	if len(g.values) < 64 {
		return
	}
	size := 0
	for v := range g.values {
		size += len(v)
	}
	var all strings.Builder
	all.Grow(size)
	packed := make(map[string]*node, len(g.values))
	for v, n := range g.values {
		all.WriteString(v)
		packed[all.String()[all.Len()-len(v):]] = n
	}
	g.values = packed
}

// exact returns the descriptor that has key and value as its texts, nil if there is
// none.
func (t *tier) exact(key, value string) *node {
	g := t.keys[key]
	switch {
	case g == nil:
		return nil
	case value == "":
		return g.any
	}
	return g.values[value]
}

// find returns the descriptor that an entry meets: the one of its very key and
// value, else the first wildcard, else the one of its key without a value.
func (t *tier) find(key, value string) *node {
	g := t.keys[key]
	if g == nil {
		if len(t.wild.all) == 0 {
			return nil
		}
		g = &noGroup
	}
	if n := g.values[value]; n != nil {
		return n
	}
	if len(t.wild.all)+len(g.wild.all) > 0 {
		first := g.wild.first(key, value, math.MaxInt)
		before := math.MaxInt
		if first != nil {
			before = first.order
		}
		if w := t.wild.first(key, value, before); w != nil {
			first = w
		}
		if first != nil {
			return first.node
		}
	}
	return g.any
}

// wildcard is a descriptor with a * in its key or value.
type wildcard struct {
	key, value glob
	order      int // place among all siblings
	node       *node
}

// wildcards are some of the wildcards of a tier, in file order.
type wildcards struct {
	all   []wildcard
	needs []pairs // what each needs of a text
}

func (w *wildcards) add(c wildcard) {
	var need pairs
	need.addGlob(&c.key, 0)
	need.addGlob(&c.value, 1)
	w.all = append(w.all, c)
	w.needs = append(w.needs, need)
}

// few is how many wildcards are sooner tried than sieved.
const few = 3

// first returns the first wildcard that matches, if it comes before the given
// place.
func (w *wildcards) first(key, value string, before int) *wildcard {
	if len(w.all) <= few || len(key)+len(value) > longText {
		for i := range w.all {
			if c := &w.all[i]; c.order < before && c.value.match(value) && c.key.match(key) {
				return c
			}
		}
		return nil
	}
	var has pairs
	has.addText(key, edge, edge)
	has.addText(value, edge+1, edge+1)
	lo, hi := ^has[0], ^has[1]
	for i := range w.needs {
		if need := &w.needs[i]; need[0]&lo|need[1]&hi != 0 {
			continue
		}
		if c := &w.all[i]; c.order < before && c.value.match(value) && c.key.match(key) {
			return c
		}
	}
	return nil
}

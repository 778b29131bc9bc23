package descriptors

import (
	"math"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// node is a compiled descriptor.
type node struct {
	*limitsfile.Descriptor
	rule     *Rule     // nil if no limit is in force
	children *siblings // nil if none
}

// siblings is the descriptors below one parent, indexed for find.
type siblings struct {
	nodes     []node // in file order
	keys      map[string]*sameKey
	wildcards wildcards // those with a * in the key
}

// sameKey is the siblings with one key.
type sameKey struct {
	values    map[string]*node // those with a value, wildcards by their text too
	anyValue  *node            // the one without a value
	wildcards wildcards        // those with a * in the value but none in the key
}

var noSameKey sameKey

// add indexes n, which is the i-th of its siblings.
func (s *siblings) add(n *node, i int) {
	k := s.keys[n.Key]
	if k == nil {
		k = &sameKey{}
		s.keys[n.Key] = k
	}
	value := anything
	if n.Value == "" {
		k.anyValue = n
	} else {
		if k.values == nil {
			k.values = map[string]*node{}
		}
		k.values[n.Value] = n
		value = limitsfile.NewPattern(n.Value)
	}
	switch {
	case n.WildcardKey:
		s.wildcards.add(wildcard{limitsfile.NewPattern(n.Key), value, i, n})
	case n.WildcardValue:
		k.wildcards.add(wildcard{anything, value, i, n})
	}
}

// exact returns the node whose key and value have these texts, or nil.
func (s *siblings) exact(key, value string) *node {
	if s == nil {
		return nil
	}
	k := s.keys[key]
	switch {
	case k == nil:
		return nil
	case value == "":
		return k.anyValue
	}
	return k.values[value]
}

// find returns the node that an entry matches, or nil: the one with the entry's key and
// value, else the first wildcard, else the one with the key and no value.
func (s *siblings) find(key, value string) *node {
	k := s.keys[key]
	if k == nil {
		if len(s.wildcards.all) == 0 {
			return nil
		}
		k = &noSameKey
	}
	if n := k.values[value]; n != nil {
		return n
	}
	if len(s.wildcards.all)+len(k.wildcards.all) > 0 {
		first := k.wildcards.first(key, value, math.MaxInt)
		before := math.MaxInt
		if first != nil {
			before = first.order
		}
		if w := s.wildcards.first(key, value, before); w != nil {
			first = w
		}
		if first != nil {
			return first.node
		}
	}
	return k.anyValue
}

// ownChildren returns the children of n, or nil if it shares those of the sibling that
// an override copied it from.
func (s *siblings) ownChildren(n *node) *siblings {
	if n.CopiedFrom != nil {
		if from := s.exact(n.CopiedFrom.Key, n.CopiedFrom.Value); from != nil && from.children == n.children {
			return nil
		}
	}
	return n.children
}

var anything = limitsfile.NewPattern("*")

// wildcard is a node with a * in its key or value.
type wildcard struct {
	key, value limitsfile.Pattern
	order      int // place among all siblings
	node       *node
}

func (w *wildcard) match(key, value string) bool { return w.value.Match(value) && w.key.Match(key) }

// wildcards is some of the wildcards among siblings, in file order.
type wildcards struct {
	all     []wildcard
	filters []bigramFilter // pairs that each of all needs; none below minFiltered
}

func (ws *wildcards) add(w wildcard) {
	ws.all = append(ws.all, w)
	if len(ws.all) >= minFiltered {
		ws.addFilters()
	}
}

// addFilters adds the filters that are missing.
func (ws *wildcards) addFilters() {
	for i := len(ws.filters); i < len(ws.all); i++ {
		var f bigramFilter
		f.addPattern(&ws.all[i].key, edge)
		f.addPattern(&ws.all[i].value, edge+1)
		ws.filters = append(ws.filters, f)
	}
}

// first returns the first wildcard that matches and whose order is below the given one.
func (ws *wildcards) first(key, value string, before int) *wildcard {
	if ws.filters == nil || len(key)+len(value) > maxFiltered {
		for i := range ws.all {
			if w := &ws.all[i]; w.order < before && w.match(key, value) {
				return w
			}
		}
		return nil
	}
	var text bigramFilter
	text.addText(key, edge, edge)
	text.addText(value, edge+1, edge+1)
	missing0, missing1 := ^text[0], ^text[1]
	for i := range ws.filters {
		if f := &ws.filters[i]; f[0]&missing0|f[1]&missing1 != 0 {
			continue
		}
		if w := &ws.all[i]; w.order < before && w.match(key, value) {
			return w
		}
	}
	return nil
}

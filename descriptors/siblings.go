package descriptors

import (
	"errors"
	"math"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors/condition"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// node is a compiled descriptor.
type node struct {
	*limitsfile.Descriptor
	rule     *Rule     // nil if no limit is in force
	off      *Off      // nil if no switch has taken the limits out of force
	children *siblings // nil if none
	canDeny  bool      // rule or a rule below can deny
}

// siblings is an index of the descriptors below one parent.
type siblings struct {
	nodes     []node // in file order
	keys      map[string]*keyNodes
	wildcards wildcards // nodes with a * in the key
}

// keyNodes has the siblings with one key.
type keyNodes struct {
	values     map[string]*node // nodes with a value, by the value or its pattern
	conditions []*node          // nodes with a condition, in file order
	anyValue   *node            // the node without a value
	wildcards  wildcards        // nodes with a * in the value only
}

var noNodes keyNodes // of a key without nodes

// newSiblings returns list without rules and children.
func newSiblings(list []*limitsfile.Descriptor) siblings {
	s := siblings{nodes: make([]node, len(list)), keys: map[string]*keyNodes{}}
	for i, d := range list {
		s.nodes[i].Descriptor = d
		s.add(&s.nodes[i], i)
	}
	return s
}

func (s *siblings) add(n *node, i int) {
	k := s.keys[n.Key]
	if k == nil {
		k = &keyNodes{}
		s.keys[n.Key] = k
	}
	switch {
	case n.Condition != nil:
		k.conditions = append(k.conditions, n)
	case n.Value == "":
		k.anyValue = n
	default:
		if k.values == nil {
			k.values = map[string]*node{}
		}
		k.values[n.Value] = n
	}
	if !n.WildcardKey && !n.WildcardValue {
		return
	}
	value := anything
	if n.Value != "" {
		value = limitsfile.NewPattern(n.Value)
	}
	switch {
	case n.WildcardKey:
		s.wildcards.add(wildcard{limitsfile.NewPattern(n.Key), value, i, n})
	case n.WildcardValue:
		k.wildcards.add(wildcard{anything, value, i, n})
	}
}

// Index finds the descriptors of one list.
type Index struct{ siblings siblings }

// NewIndex returns an index of list.
func NewIndex(list []*limitsfile.Descriptor) *Index {
	return &Index{newSiblings(list)}
}

// Find returns the descriptor with the key and value of the last entry, or else the descriptor that matches a
// request with these entries, or nil.
func (x *Index) Find(entries []*ratelimitv3.RateLimitDescriptor_Entry) (d *limitsfile.Descriptor, exact bool) {
	e := entries[len(entries)-1]
	key, value := e.GetKey(), e.GetValue()
	if n := x.siblings.findExact(key, value); n != nil {
		return n.Descriptor, true
	}
	if value != "" && !strings.Contains(key+value, "*") {
		if n := x.siblings.find(entries, &lookup{}); n != nil {
			return n.Descriptor, false
		}
	}
	return nil, false
}

// EntryCondition returns the first descriptor with this key and a condition that reads other entries, or nil. The
// value alone then does not decide which descriptor matches.
func (x *Index) EntryCondition(key string) *limitsfile.Descriptor {
	if k := x.siblings.keys[key]; k != nil {
		for _, n := range k.conditions {
			if n.Condition.ReadsEntries() {
				return n.Descriptor
			}
		}
	}
	return nil
}

// findExact returns the node with this key and this value, pattern or text of a condition, or nil.
func (s *siblings) findExact(key, value string) *node {
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
	for _, n := range k.conditions {
		if n.Value == value {
			return n
		}
	}
	return k.values[value]
}

// find returns the node that the last of entries matches, or nil: the node with the entry's key and value, or else
// the first condition, the first wildcard, or the node with the key and no value. A condition that the budget of l
// does not suffice to test does not match.
func (s *siblings) find(entries []*ratelimitv3.RateLimitDescriptor_Entry, l *lookup) *node {
	e := entries[len(entries)-1]
	key, value := e.GetKey(), e.GetValue()
	k := s.keys[key]
	if k == nil {
		if len(s.wildcards.all) == 0 {
			return nil
		}
		k = &noNodes
	}
	if n := k.values[value]; n != nil {
		return n
	}
	if len(k.conditions) > 0 {
		if n := l.firstCondition(k.conditions, entries); n != nil {
			return n
		}
	}
	if len(s.wildcards.all)+len(k.wildcards.all) > 0 {
		first := k.wildcards.first(key, value, math.MaxInt)
		maxOrder := math.MaxInt
		if first != nil {
			maxOrder = first.order
		}
		if w := s.wildcards.first(key, value, maxOrder); w != nil {
			first = w
		}
		if first != nil {
			return first.node
		}
	}
	return k.anyValue
}

// firstCondition returns the first node whose condition the last of entries meets, or nil.
func (l *lookup) firstCondition(nodes []*node, entries []*ratelimitv3.RateLimitDescriptor_Entry) *node {
	v := condition.NewValue(entries)
	for _, n := range nodes {
		isMet, err := n.Condition.Match(&v, &l.budget)
		switch {
		case isMet:
			return n
		case err == nil:
		case errors.Is(err, ErrNotTested):
			l.addUntested(n)
		case l.observedDomain != nil && l.observedDomain.observer != nil:
			l.observedDomain.observer.ExpressionFailed(l.observedDomain.Name, n.Descriptor, err)
		}
	}
	return nil
}

func (s *siblings) copiedFrom(d *limitsfile.Descriptor) *node {
	if d.CopiedFrom == nil {
		return nil
	}
	return s.findExact(d.CopiedFrom.Key, d.CopiedFrom.Value)
}

// ownChildren returns the children of n, unless they are those of the original of a copy.
func (s *siblings) ownChildren(n *node) *siblings {
	if original := s.copiedFrom(n.Descriptor); original != nil && original.children == n.children {
		return nil
	}
	return n.children
}

var anything = limitsfile.NewPattern("*")

type wildcard struct {
	key, value limitsfile.Pattern
	order      int // place among all siblings
	node       *node
}

func (w *wildcard) match(key, value string) bool { return w.value.Match(value) && w.key.Match(key) }

// wildcards is a list of wildcards in file order.
type wildcards struct {
	all     []wildcard
	filters []bigramFilter // one for each wildcard, or nil for fewer than minFiltered
}

func (ws *wildcards) add(w wildcard) {
	ws.all = append(ws.all, w)
	if len(ws.all) >= minFiltered {
		ws.addFilters()
	}
}

func (ws *wildcards) addFilters() {
	for i := len(ws.filters); i < len(ws.all); i++ {
		var f bigramFilter
		f.addPattern(&ws.all[i].key, keyEdge)
		f.addPattern(&ws.all[i].value, valueEdge)
		ws.filters = append(ws.filters, f)
	}
}

// first returns the first wildcard that matches and has an order below maxOrder.
func (ws *wildcards) first(key, value string, maxOrder int) *wildcard {
	if ws.filters == nil || len(key)+len(value) > maxFilteredBytes {
		for i := range ws.all {
			if w := &ws.all[i]; w.order < maxOrder && w.match(key, value) {
				return w
			}
		}
		return nil
	}
	var text bigramFilter
	text.addText(key, keyEdge, keyEdge)
	text.addText(value, valueEdge, valueEdge)
	missing0, missing1 := ^text[0], ^text[1]
	for i := range ws.filters {
		if f := &ws.filters[i]; f[0]&missing0|f[1]&missing1 != 0 {
			continue
		}
		if w := &ws.all[i]; w.order < maxOrder && w.match(key, value) {
			return w
		}
	}
	return nil
}

// bigramFilter is a set of pairs of neighbouring bytes, hashed to 128 bits. A pattern can match only a text that
// has all pairs of the pattern, so two AND operations rule out most patterns.
type bigramFilter [2]uint64

const (
	// minFiltered is the number of wildcards from which a filter saves time.
	minFiltered = 4

	// maxFilteredBytes bounds filtered texts. The pairs of longer texts fill the filter.
	maxFilteredBytes = 512

	// keyEdge and valueEdge stand for the byte before and after a key or a value.
	keyEdge, valueEdge = 256, 257
)

func (f *bigramFilter) add(a, b uint32) {
	h := (a<<9 ^ b) * 0x9E3779B1 >> 25
	f[h>>6] |= 1 << (h & 63)
}

// addText adds the pairs of text. left and right are its neighbours, or -1 if unknown.
func (f *bigramFilter) addText(text string, left, right int) {
	for i := range len(text) {
		if left >= 0 {
			f.add(uint32(left), uint32(text[i]))
		}
		left = int(text[i])
	}
	if left >= 0 && right >= 0 {
		f.add(uint32(left), uint32(right))
	}
}

// addPattern adds the pairs that every text of p has. edge is the neighbour at both ends of the text.
func (f *bigramFilter) addPattern(p *limitsfile.Pattern, edge int) {
	if p.Literal {
		f.addText(p.Prefix, edge, edge)
		return
	}
	if p.Prefix != "" {
		f.addText(p.Prefix, edge, -1)
	}
	for _, part := range p.Middle {
		f.addText(part, -1, -1)
	}
	if p.Suffix != "" {
		f.addText(p.Suffix, -1, edge)
	}
}

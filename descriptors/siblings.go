package descriptors

import (
	"errors"
	"math"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors/condition"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

type node struct {
	*limitsfile.Descriptor
	rule      *Rule         // nil if no limit is in force
	offSwitch *OffSwitch    // the switch that turned the limits off, or nil
	children  *siblingNodes // nil without children
	canDeny   bool          // the rule of this node, or of a node below it, can deny
}

// siblingNodes is an index of the descriptors below one parent.
type siblingNodes struct {
	nodes     []node               // all siblings, in file order
	keys      map[string]*keyNodes // by the key of the descriptors, which can contain a *
	wildcards wildcards            // the siblings with a * in the key
}

type keyNodes struct {
	values     map[string]*node // the nodes with a value; the key is the value or the pattern
	conditions []*node          // the nodes with a condition, in file order
	anyValue   *node            // the node without a value
	wildcards  wildcards        // the nodes with a * only in the value
}

var emptyKeyNodes keyNodes // the nodes of a key that no descriptor has

// newSiblingNodes returns the nodes of descriptors, without rules and children.
func newSiblingNodes(descriptors []*limitsfile.Descriptor) siblingNodes {
	s := siblingNodes{nodes: make([]node, len(descriptors)), keys: map[string]*keyNodes{}}
	for i, d := range descriptors {
		s.nodes[i].Descriptor = d
		s.add(&s.nodes[i], i)
	}
	return s
}

// add adds n to the index. i is the index of n in s.nodes.
func (s *siblingNodes) add(n *node, i int) {
	nodesOfKey := s.keys[n.Key]
	if nodesOfKey == nil {
		nodesOfKey = &keyNodes{}
		s.keys[n.Key] = nodesOfKey
	}
	switch {
	case n.Condition != nil:
		nodesOfKey.conditions = append(nodesOfKey.conditions, n)
	case n.Value == "":
		nodesOfKey.anyValue = n
	default:
		if nodesOfKey.values == nil {
			nodesOfKey.values = map[string]*node{}
		}
		nodesOfKey.values[n.Value] = n
	}
	if !n.HasWildcardKey && !n.HasWildcardValue {
		return
	}
	value := anyText
	if n.Value != "" {
		value = limitsfile.NewPattern(n.Value)
	}
	switch {
	case n.HasWildcardKey:
		s.wildcards.add(wildcard{limitsfile.NewPattern(n.Key), value, i, n})
	case n.HasWildcardValue:
		nodesOfKey.wildcards.add(wildcard{anyText, value, i, n})
	}
}

// Index finds the descriptors of one list.
type Index struct{ nodes siblingNodes }

// NewIndex returns an index of descriptors.
func NewIndex(descriptors []*limitsfile.Descriptor) *Index {
	return &Index{newSiblingNodes(descriptors)}
}

// Find returns the descriptor with the key and value of the last entry, and isExact is true. If there is none, Find returns
// the descriptor that matches a request with these entries, or nil.
func (x *Index) Find(entries []*ratelimitv3.RateLimitDescriptor_Entry) (d *limitsfile.Descriptor, isExact bool) {
	e := entries[len(entries)-1]
	key, value := e.GetKey(), e.GetValue()
	if n := x.nodes.findExact(key, value); n != nil {
		return n.Descriptor, true
	}
	if value != "" && !strings.Contains(key+value, "*") {
		if n := x.nodes.find(entries, &lookup{}); n != nil {
			return n.Descriptor, false
		}
	}
	return nil, false
}

// ConditionOnOtherEntries returns the first descriptor with this key and a condition that reads other entries, or nil.
// With such a descriptor, the value alone does not tell which descriptor matches.
func (x *Index) ConditionOnOtherEntries(key string) *limitsfile.Descriptor {
	if k := x.nodes.keys[key]; k != nil {
		for _, n := range k.conditions {
			if n.Condition.ReadsEntries() {
				return n.Descriptor
			}
		}
	}
	return nil
}

// findExact returns the node with this key and this value, pattern or text of a condition, or nil.
func (s *siblingNodes) findExact(key, value string) *node {
	if s == nil {
		return nil
	}
	nodesOfKey := s.keys[key]
	switch {
	case nodesOfKey == nil:
		return nil
	case value == "":
		return nodesOfKey.anyValue
	}
	for _, n := range nodesOfKey.conditions {
		if n.Value == value {
			return n
		}
	}
	return nodesOfKey.values[value]
}

// find returns the node that the last entry matches, or nil. It looks for these nodes, in this order: the node with the key
// and value of the entry, the first node with a condition that the entry meets, the first wildcard that matches, and the
// node with the key and no value. find skips a condition if the budget of l has too few steps left for the test.
func (s *siblingNodes) find(entries []*ratelimitv3.RateLimitDescriptor_Entry, l *lookup) *node {
	e := entries[len(entries)-1]
	key, value := e.GetKey(), e.GetValue()
	nodesOfKey := s.keys[key]
	if nodesOfKey == nil {
		if len(s.wildcards.list) == 0 {
			return nil
		}
		nodesOfKey = &emptyKeyNodes
	}
	if n := nodesOfKey.values[value]; n != nil {
		return n
	}
	if len(nodesOfKey.conditions) > 0 {
		if n := l.firstMetCondition(nodesOfKey.conditions, entries); n != nil {
			return n
		}
	}
	if len(s.wildcards.list)+len(nodesOfKey.wildcards.list) > 0 {
		firstMatch := nodesOfKey.wildcards.firstMatch(key, value, math.MaxInt)
		endIndex := math.MaxInt
		if firstMatch != nil {
			endIndex = firstMatch.fileIndex
		}
		if w := s.wildcards.firstMatch(key, value, endIndex); w != nil {
			firstMatch = w
		}
		if firstMatch != nil {
			return firstMatch.node
		}
	}
	return nodesOfKey.anyValue
}

func (l *lookup) firstMetCondition(nodes []*node, entries []*ratelimitv3.RateLimitDescriptor_Entry) *node {
	v := condition.NewValue(entries)
	for _, n := range nodes {
		isMet, err := n.Condition.Match(&v, &l.budget)
		switch {
		case isMet:
			return n
		case err == nil:
		case errors.Is(err, ErrNotTested):
			l.addUntestedNode(n)
		case l.domain != nil && l.domain.observer != nil:
			l.domain.observer.ExpressionFailed(l.domain.Name, n.Descriptor, err)
		}
	}
	return nil
}

func (s *siblingNodes) originalOf(d *limitsfile.Descriptor) *node {
	if d.Original == nil {
		return nil
	}
	return s.findExact(d.Original.Key, d.Original.Value)
}

// ownChildren returns the children of n. If n is a copy that shares the children of its original, it returns nil.
func (s *siblingNodes) ownChildren(n *node) *siblingNodes {
	if original := s.originalOf(n.Descriptor); original != nil && original.children == n.children {
		return nil
	}
	return n.children
}

var anyText = limitsfile.NewPattern("*")

type wildcard struct {
	key, value limitsfile.Pattern
	fileIndex  int // the index of node among all siblings, in file order
	node       *node
}

func (w *wildcard) matches(key, value string) bool { return w.value.Match(value) && w.key.Match(key) }

// wildcards is a list of wildcards in file order.
type wildcards struct {
	list     []wildcard
	pairSets []pairSet // the pairs that each wildcard in list needs
}

func (ws *wildcards) add(w wildcard) {
	ws.list = append(ws.list, w)
	var pairs pairSet
	for _, p := range []limitsfile.Pattern{w.key, w.value} {
		pairs.add(p.Prefix, p.Suffix)
		pairs.add(p.MiddleParts...)
	}
	ws.pairSets = append(ws.pairSets, pairs)
}

// firstMatch returns the first wildcard that matches and has a fileIndex below endIndex.
func (ws *wildcards) firstMatch(key, value string, endIndex int) *wildcard {
	missingPairs := pairSet{}
	if len(ws.list) >= minFilteredWildcards && len(key)+len(value) <= maxFilteredBytes {
		missingPairs.add(key, value)
		missingPairs = pairSet{^missingPairs[0], ^missingPairs[1]}
	}
	for i := range ws.pairSets {
		if p := &ws.pairSets[i]; p[0]&missingPairs[0]|p[1]&missingPairs[1] != 0 {
			continue
		}
		if w := &ws.list[i]; w.fileIndex < endIndex && w.matches(key, value) {
			return w
		}
	}
	return nil
}

const (
	// minFilteredWildcards is the least number of wildcards for which sets of pairs save time.
	minFilteredWildcards = 4

	// maxFilteredBytes bounds the texts whose pairs are added. The pairs of a longer text set nearly all bits, so they
	// would rule out few wildcards.
	maxFilteredBytes = 512
)

// pairSet is a set of pairs of neighbouring bytes. The set has 128 bits, and each pair sets the bit of its hash. A pattern
// can match only a text that has all pairs of the pattern, so two AND operations rule out most patterns.
type pairSet [2]uint64

func (s *pairSet) add(texts ...string) {
	for _, text := range texts {
		for i := 1; i < len(text); i++ {
			bit := (uint32(text[i-1])<<8 | uint32(text[i])) * 0x9E3779B1 >> 25 // Fibonacci hashing: 2^32 divided by the golden ratio, and the upper 7 bits
			s[bit>>6] |= 1 << (bit & 63)
		}
	}
}

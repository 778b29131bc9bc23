package descriptors

import (
	"cmp"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// Difference is the way in which an entry differs from a descriptor that it almost matches.
type Difference uint8

// The differences.
const (
	Unrelated Difference = iota // the entry does not almost match the descriptor

	// OtherCase means that upper and lower case differ.
	OtherCase

	// ExtraSpace means that a space at the start or end differs.
	ExtraSpace

	// JoinedText means that key, "_" and value make the same text, but the key ends elsewhere.
	JoinedText

	// PartOfPattern means that the value matches only a part of the pattern.
	PartOfPattern

	// UnmetCondition means that the key is the same and the value does not meet the condition.
	UnmetCondition

	// SimilarValue and SimilarKey mean that one or two characters differ.
	SimilarValue
	SimilarKey

	// OtherValue means that the key is the same and the value is another one.
	OtherValue
)

// String returns the difference as JSON shows it.
func (d Difference) String() string {
	return [...]string{"", "other_case", "extra_space", "joined_text", "part_of_pattern", "unmet_condition", "similar_value", "similar_key", "other_value"}[d]
}

// difference returns how e differs from d. The entry must not match d.
func difference(e *ratelimitv3.RateLimitDescriptor_Entry, d *limitsfile.Descriptor) Difference {
	key, value := e.GetKey(), e.GetValue()
	sameKey, anyValue := matchText(d.Key, key), d.Value == ""
	// matchesAfter reports whether the entry matches d once change has changed all texts.
	matchesAfter := func(change func(string) string) bool {
		return matchText(change(d.Key), change(key)) && (anyValue || matchText(change(d.Value), change(value)))
	}
	switch {
	case d.Condition != nil && d.Key == key:
		return UnmetCondition
	case d.Condition != nil:
		return Unrelated
	case matchesAfter(strings.ToLower):
		return OtherCase
	case matchesAfter(strings.TrimSpace):
		return ExtraSpace
	case value != "" && !anyValue && !d.WildcardKey && !d.WildcardValue && key+"_"+value == d.Key+"_"+d.Value:
		return JoinedText
	case sameKey && d.WildcardValue && partlyMatches(d.Value, value):
		return PartOfPattern
	case sameKey && !d.WildcardValue && similar(value, d.Value):
		return SimilarValue
	case sameKey:
		return OtherValue
	case !d.WildcardKey && similar(key, d.Key) && (anyValue || matchText(d.Value, value)):
		return SimilarKey
	}
	return Unrelated
}

// matchText reports whether pattern matches text. A pattern without a * matches only the same
// text.
func matchText(pattern, text string) bool {
	if !strings.Contains(pattern, "*") {
		return pattern == text
	}
	p := limitsfile.NewPattern(pattern)
	return p.Match(text)
}

// partlyMatches reports whether text starts or ends like pattern. The last one or two bytes of
// the start may be missing: /api is a part of /api/*.
func partlyMatches(pattern, text string) bool {
	p := limitsfile.NewPattern(pattern)
	return p.Prefix != "" && strings.HasPrefix(text, p.Prefix) ||
		p.Suffix != "" && strings.HasSuffix(text, p.Suffix) ||
		text != "" && len(p.Prefix)-len(text) <= 2 && strings.HasPrefix(p.Prefix, text)
}

// similar reports whether b could be a misspelling of a.
func similar(a, b string) bool {
	const maxBytes = 64
	if len(a) > maxBytes || len(b) > maxBytes || min(len(a), len(b)) < 3 || max(len(a), len(b))-min(len(a), len(b)) > 2 {
		return false
	}
	return levenshtein.ComputeDistance(a, b) <= min(2, len(a)/3)
}

// NearRule is a rule that would match a request with few changes.
type NearRule struct {
	Path    string
	Trail   []*limitsfile.Descriptor
	Changes []Change // of the request or the rule
}

// Change is a reason why a near rule does not match.
type Change struct {
	Kind  ChangeKind
	Entry int // the index of the entry in the request

	// Descriptor is the descriptor of the near rule that the change is about, or nil.
	Descriptor *limitsfile.Descriptor

	// Winner is the descriptor that the entry matches instead, for a LosingMatch.
	Winner *limitsfile.Descriptor

	// Difference is set for a DifferentEntry.
	Difference Difference
}

// ChangeKind is the kind of a Change.
type ChangeKind uint8

// The kinds of change. A rule with a change of a lower kind is closer.
const (
	DifferentEntry ChangeKind = iota + 1 // the entry differs from the descriptor
	LimitsOff                            // all limits of the rule are off
	LosingMatch                          // another descriptor of the level wins
	OtherOrder                           // the entries have another order
	MissingEntry                         // the request has no entry for the descriptor
	ExtraEntry                           // the rule has no descriptor for the entry
)

// String returns the kind as JSON shows it.
func (k ChangeKind) String() string {
	return [...]string{"", "different_entry", "limits_off", "losing_match", "other_order", "missing_entry", "extra_entry"}[k]
}

const (
	maxNearRules  = 3
	maxFoundRules = 50      // rules that the search finds before the closest are chosen
	maxNearVisits = 200_000 // nodes that the search visits
)

// nearRules returns the rules that entries almost match, the closest first.
func (d *Domain) nearRules(entries []*ratelimitv3.RateLimitDescriptor_Entry) []NearRule {
	const maxReordered = 5 // entries whose other orders are tried
	for _, maxChanges := range []int{1, 2} {
		s := nearSearch{domain: d.Name, entries: entries, maxChanges: maxChanges, visitsLeft: maxNearVisits}
		if len(entries) <= maxReordered {
			s.searchOtherOrders(&d.root, NearRule{}, nil)
		}
		s.search(&node{children: &d.root}, NearRule{}, 0)
		if len(s.foundRules) > 0 {
			slices.SortStableFunc(s.foundRules, func(a, b NearRule) int {
				return cmp.Or(cmp.Compare(len(a.Changes), len(b.Changes)), cmp.Compare(a.Changes[0].Kind, b.Changes[0].Kind))
			})
			return s.foundRules[:min(len(s.foundRules), maxNearRules)]
		}
	}
	return nil
}

// nearSearch is a search for rules that need at most maxChanges changes.
type nearSearch struct {
	domain     string
	entries    []*ratelimitv3.RateLimitDescriptor_Entry
	maxChanges int
	visitsLeft int
	lookup     lookup
	foundRules []NearRule
}

// below returns r for d, a descriptor below the last of r. changes are needed to get there.
func (r NearRule) below(d *limitsfile.Descriptor, changes ...Change) NearRule {
	return NearRule{Trail: append(slices.Clip(r.Trail), d), Changes: append(slices.Clip(r.Changes), changes...)}
}

// search finds rules at n and below for the entries from i on. found leads to n.
func (s *nearSearch) search(n *node, found NearRule, i int) {
	if i == len(s.entries) {
		s.add(n, found)
	}
	s.searchBelow(n, found, i)
	if i < len(s.entries) && len(found.Changes) < s.maxChanges {
		found.Changes = append(slices.Clip(found.Changes), Change{Kind: ExtraEntry, Entry: i})
		s.search(n, found, i+1)
	}
}

// searchBelow finds rules below n for the entries from i on. found leads to n.
func (s *nearSearch) searchBelow(n *node, found NearRule, i int) {
	if n.children == nil || len(s.foundRules) == maxFoundRules {
		return
	}
	var winner *node
	if i < len(s.entries) {
		if winner = n.children.find(s.entries[:i+1], &s.lookup); winner != nil {
			s.search(winner, found.below(winner.Descriptor), i+1)
		}
	}
	if len(found.Changes) == s.maxChanges {
		return
	}
	for j := range n.children.nodes {
		child := &n.children.nodes[j]
		if s.visitsLeft--; s.visitsLeft < 0 || len(s.foundRules) == maxFoundRules {
			return
		}
		if i < len(s.entries) && child != winner {
			c := Change{Kind: LosingMatch, Entry: i, Descriptor: child.Descriptor}
			if kind, _ := child.matchKind(s.entries[:i+1], &s.lookup); kind != NoMatch {
				c.Winner = winner.Descriptor
				s.search(child, found.below(child.Descriptor, c), i+1)
			} else if c.Difference = difference(s.entries[i], child.Descriptor); c.Difference != Unrelated && c.Difference != OtherValue {
				c.Kind = DifferentEntry
				s.search(child, found.below(child.Descriptor, c), i+1)
			}
		}
		if child.CopiedFrom == nil { // a copy has the same rules as its original
			s.search(child, found.below(child.Descriptor, Change{Kind: MissingEntry, Entry: i, Descriptor: child.Descriptor}), i)
		}
	}
}

// add records the rule of n, if found leads to it. A rule without changes is the match itself.
func (s *nearSearch) add(n *node, found NearRule) {
	if n.rule == nil {
		if n.Descriptor == nil || !n.hasLimits() || len(found.Changes) == s.maxChanges {
			return
		}
		found.Changes = append(slices.Clip(found.Changes), Change{Kind: LimitsOff, Entry: len(s.entries) - 1, Descriptor: n.Descriptor})
	}
	found.Path = limitsfile.Path(s.domain, found.Trail)
	isFound := slices.ContainsFunc(s.foundRules, func(r NearRule) bool { return r.Path == found.Path })
	if len(found.Changes) > 0 && !isFound && len(s.foundRules) < maxFoundRules {
		s.foundRules = append(s.foundRules, found)
	}
}

// searchOtherOrders finds rules in list and below for the same entries in another order. found leads to list,
// by the entries in used.
func (s *nearSearch) searchOtherOrders(list *siblings, found NearRule, used []*ratelimitv3.RateLimitDescriptor_Entry) {
	for _, e := range s.entries {
		if list == nil || slices.Contains(used, e) {
			continue
		}
		ordered := append(slices.Clip(used), e)
		n := list.find(ordered, &s.lookup)
		switch {
		case n == nil:
		case len(ordered) < len(s.entries):
			s.searchOtherOrders(n.children, found.below(n.Descriptor), ordered)
		case n.rule != nil:
			s.add(n, found.below(n.Descriptor, Change{Kind: OtherOrder}))
		}
	}
}

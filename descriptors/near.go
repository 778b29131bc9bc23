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

// comparedEntry is an entry with the texts that difference compares.
type comparedEntry struct{ key, value, lowerKey, lowerValue string }

func newComparedEntry(e *ratelimitv3.RateLimitDescriptor_Entry) comparedEntry {
	return comparedEntry{e.GetKey(), e.GetValue(), strings.ToLower(e.GetKey()), strings.ToLower(e.GetValue())}
}

// difference returns how the entry differs from d. The entry must not match d.
func (e *comparedEntry) difference(d *limitsfile.Descriptor) Difference {
	if d.Condition != nil {
		if d.Key == e.key {
			return UnmetCondition
		}
		return Unrelated
	}
	anyValue := d.Value == ""
	matches := func(key, value, dKey, dValue string) bool {
		return matchText(dKey, key) && (anyValue || matchText(dValue, value))
	}
	sameKey := matchText(d.Key, e.key)
	switch {
	case matches(e.lowerKey, e.lowerValue, strings.ToLower(d.Key), strings.ToLower(d.Value)):
		return OtherCase
	case matches(strings.TrimSpace(e.key), strings.TrimSpace(e.value), strings.TrimSpace(d.Key), strings.TrimSpace(d.Value)):
		return ExtraSpace
	case e.value != "" && !anyValue && !d.WildcardKey && !d.WildcardValue && e.key+"_"+e.value == d.Key+"_"+d.Value:
		return JoinedText
	case sameKey && d.WildcardValue && partlyMatches(d.Value, e.value):
		return PartOfPattern
	case sameKey && !d.WildcardValue && similar(e.value, d.Value):
		return SimilarValue
	case sameKey:
		return OtherValue
	case !d.WildcardKey && similar(e.key, d.Key) && (anyValue || matchText(d.Value, e.value)):
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
	for _, maxChanges := range []int{1, 2} {
		s := nearSearch{domain: d.Name, entries: entries, maxChanges: maxChanges, visitsLeft: maxNearVisits}
		for _, e := range entries {
			s.comparedEntries = append(s.comparedEntries, newComparedEntry(e))
		}
		s.searchOtherOrders(d)
		s.search(&d.root, 0, nil, nil)
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
	domain          string
	entries         []*ratelimitv3.RateLimitDescriptor_Entry
	comparedEntries []comparedEntry // of entries
	maxChanges      int
	visitsLeft      int
	lookup          lookup
	foundRules      []NearRule
}

// search compares the entries from i on with list. trail has the descriptors above list.
// changes has the changes that were needed for trail.
func (s *nearSearch) search(list *siblings, i int, trail []*limitsfile.Descriptor, changes []Change) {
	if list == nil || len(s.foundRules) == maxFoundRules {
		return
	}
	budget := s.maxChanges - len(changes)
	if i < len(s.entries) && budget > 0 {
		// Without this entry, the next entry is compared with the same list.
		if i+1 < len(s.entries) {
			s.search(list, i+1, trail, append(slices.Clip(changes), Change{Kind: ExtraEntry, Entry: i}))
		}
	}
	var winner *node
	if i < len(s.entries) {
		winner = list.find(s.entries[:i+1], &s.lookup)
		if winner != nil {
			s.visit(winner, i+1, trail, changes)
		}
	}
	if budget == 0 {
		return
	}
	for j := range list.nodes {
		n := &list.nodes[j]
		if s.visitsLeft--; s.visitsLeft < 0 || len(s.foundRules) == maxFoundRules {
			return
		}
		if i < len(s.entries) && n != winner {
			c := Change{Kind: LosingMatch, Entry: i, Descriptor: n.Descriptor}
			if kind, _ := n.matchKind(s.entries[:i+1], &s.lookup); kind != NoMatch {
				c.Winner = winner.Descriptor
				s.visit(n, i+1, trail, append(slices.Clip(changes), c))
			} else if c.Difference = s.comparedEntries[i].difference(n.Descriptor); c.Difference != Unrelated && c.Difference != OtherValue {
				c.Kind = DifferentEntry
				s.visit(n, i+1, trail, append(slices.Clip(changes), c))
			}
		}
		if n.CopiedFrom == nil { // a copy has the same rules as its original
			s.visit(n, i, trail, append(slices.Clip(changes), Change{Kind: MissingEntry, Entry: i, Descriptor: n.Descriptor}))
		}
	}
}

// visit records the rule of n if no entry is left, and searches below n.
func (s *nearSearch) visit(n *node, next int, trail []*limitsfile.Descriptor, changes []Change) {
	trail = append(slices.Clip(trail), n.Descriptor)
	if next == len(s.entries) {
		switch {
		case n.rule != nil:
			s.add(trail, changes)
		case n.hasLimits() && len(changes) < s.maxChanges:
			s.add(trail, append(slices.Clip(changes), Change{Kind: LimitsOff, Entry: next - 1, Descriptor: n.Descriptor}))
		}
	} else if entriesLeft := len(s.entries) - next; n.rule != nil && len(changes)+entriesLeft <= s.maxChanges {
		for i := next; i < len(s.entries); i++ {
			changes = append(slices.Clip(changes), Change{Kind: ExtraEntry, Entry: i})
		}
		s.add(trail, changes)
		changes = changes[:len(changes)-entriesLeft]
	}
	s.search(n.children, next, trail, changes)
}

// add records the rule at the end of trail. A rule without changes is the match itself.
func (s *nearSearch) add(trail []*limitsfile.Descriptor, changes []Change) {
	rule := NearRule{Path: limitsfile.Path(s.domain, trail), Trail: trail, Changes: changes}
	isFound := slices.ContainsFunc(s.foundRules, func(r NearRule) bool { return r.Path == rule.Path })
	if len(changes) > 0 && !isFound && len(s.foundRules) < maxFoundRules {
		s.foundRules = append(s.foundRules, rule)
	}
}

// maxReordered is the maximum number of entries that searchOtherOrders puts in other orders.
const maxReordered = 5

// searchOtherOrders finds rules for the same entries in another order.
func (s *nearSearch) searchOtherOrders(d *Domain) {
	if len(s.entries) > maxReordered {
		return
	}
	var searchOrder func(list *siblings, usedEntries []int, trail []*limitsfile.Descriptor)
	searchOrder = func(list *siblings, usedEntries []int, trail []*limitsfile.Descriptor) {
		for i, e := range s.entries {
			if list == nil || slices.Contains(usedEntries, i) {
				continue
			}
			var ordered []*ratelimitv3.RateLimitDescriptor_Entry
			for _, used := range usedEntries {
				ordered = append(ordered, s.entries[used])
			}
			n := list.find(append(ordered, e), &s.lookup)
			if n == nil {
				continue
			}
			trail := append(slices.Clip(trail), n.Descriptor)
			if len(trail) == len(s.entries) {
				if n.rule != nil {
					s.add(trail, []Change{{Kind: OtherOrder}})
				}
				continue
			}
			searchOrder(n.children, append(slices.Clip(usedEntries), i), trail)
		}
	}
	searchOrder(&d.root, nil, nil)
}

package descriptors

import (
	"slices"
	"strconv"
	"strings"

	"github.com/agnivade/levenshtein"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors/condition"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// Trace is the result of Match and the steps that lead to it.
type Trace struct {
	// Rule is the rule that Match returns, or nil.
	Rule *Rule

	// Steps has a step for each entry that Match compares. The last step has no winner if nothing matches, or if
	// Rule is UntestedRule.
	Steps []Step

	// Trail has the descriptors that win the steps.
	Trail []*limitsfile.Descriptor
}

// Step is the comparison of one entry with the descriptors of one level, which have the same parent.
type Step struct {
	Entry *ratelimitv3.RateLimitDescriptor_Entry

	// SiblingCount is the number of descriptors at this level.
	SiblingCount int

	// Candidates has the first descriptors that match the entry or come close, in file order.
	Candidates []Candidate

	// OtherValueCount is the number of descriptors with the same key and another value.
	OtherValueCount int

	// Winner is the candidate that wins, or nil.
	Winner *Candidate
}

// maxCandidates bounds the candidates of a step, without the winner. maxOtherValues bounds the candidates with the
// difference OtherValue, and also the candidates with the difference SimilarValue.
const maxCandidates, maxOtherValues = 20, 3

// Candidate is a descriptor that matches an entry or comes close.
type Candidate struct {
	*limitsfile.Descriptor

	// Kind is the way in which the descriptor matches, or NoMatch.
	Kind MatchKind

	// Difference says how the entry differs from the descriptor, if Kind is NoMatch.
	Difference Difference

	// Failure is the error of the condition of the descriptor, or ErrNotTested if the condition was not tested, or nil.
	Failure error
}

// MatchKind is the way in which a descriptor matches an entry. A lower kind wins. Among descriptors of the same kind,
// the first descriptor in the file wins.
type MatchKind uint8

// The kinds of match.
const (
	ExactMatch     MatchKind = iota + 1 // the same key and value
	ConditionMatch                      // the same key, and a value that meets the condition
	PatternMatch                        // a * in the key or value of the descriptor
	AnyValueMatch                       // the same key, and no value in the descriptor
	NoMatch
)

// String returns the kind as in JSON.
func (k MatchKind) String() string {
	return [...]string{"", "exact", "condition", "pattern", "any_value", "no_match"}[k]
}

// TraceWithBudget returns the result of MatchWithBudget and its steps. It costs much more than MatchWithBudget.
func (d *Domain) TraceWithBudget(b *Budget, entries []*ratelimitv3.RateLimitDescriptor_Entry) Trace {
	var t Trace
	l := lookup{budget: *b}
	siblings := &d.root
	for i := range entries {
		if siblings == nil {
			break
		}
		n := siblings.find(entries[:i+1], &l)
		if l.isDenied {
			n = nil
			t.Rule = d.UntestedRule
		}
		candidateLookup := lookup{untestedNodes: l.untestedNodes} // has a full budget, to test all candidates
		t.Steps = append(t.Steps, siblings.step(entries[:i+1], n, &candidateLookup))
		if n == nil {
			break
		}
		t.Trail = append(t.Trail, n.Descriptor)
		if i == len(entries)-1 {
			t.Rule = n.rule
		}
		siblings = n.children
	}
	*b = l.budget
	return t
}

// step returns the comparison of the last entry with s. winner is the node that find has returned, or nil.
func (s *siblingNodes) step(entries []*ratelimitv3.RateLimitDescriptor_Entry, winner *node, l *lookup) Step {
	e := entries[len(entries)-1]
	step := Step{Entry: e, SiblingCount: len(s.nodes)}
	otherCandidates, similarValues := 0, 0
	for i := range s.nodes {
		n := &s.nodes[i]
		c := Candidate{Descriptor: n.Descriptor}
		c.Kind, c.Failure = n.matchKind(entries, l)
		if c.Kind == NoMatch {
			c.Difference = difference(e, n.Descriptor)
			isMisspelling := winner == nil || winner.Value != e.GetValue() // the entry may be meant for a similar value
			if c.Difference == SimilarValue && (!isMisspelling || similarValues == maxOtherValues) {
				c.Difference = OtherValue
			}
			switch c.Difference {
			case Unrelated:
				continue
			case SimilarValue:
				similarValues++
			case OtherValue:
				step.OtherValueCount++
				if winner != nil || step.OtherValueCount > maxOtherValues {
					continue
				}
			}
		}
		if n != winner {
			if otherCandidates == maxCandidates {
				continue
			}
			otherCandidates++
		}
		step.Candidates = append(step.Candidates, c)
	}
	for i := range step.Candidates {
		if winner != nil && step.Candidates[i].Descriptor == winner.Descriptor {
			step.Winner = &step.Candidates[i]
		}
	}
	return step
}

// matchKind returns the way in which n matches the last entry. failure is the error of the condition of n. matchKind must
// agree with find; a test compares both functions.
func (n *node) matchKind(entries []*ratelimitv3.RateLimitDescriptor_Entry, l *lookup) (kind MatchKind, failure error) {
	e := entries[len(entries)-1]
	switch {
	case n.Condition == nil:
		return n.textMatchKind(e.GetKey(), e.GetValue()), nil
	case n.Key != e.GetKey():
		return NoMatch, nil
	case slices.Contains(l.untestedNodes, n):
		return NoMatch, ErrNotTested
	}
	v := condition.NewValue(entries)
	isMet, err := n.Condition.Match(&v, &l.budget)
	if isMet {
		return ConditionMatch, nil
	}
	return NoMatch, err
}

// textMatchKind returns the way in which n matches an entry. n must not have a condition.
func (n *node) textMatchKind(key, value string) MatchKind {
	isWildcard := n.HasWildcardKey || n.HasWildcardValue
	switch {
	case value != "" && n.Key == key && n.Value == value:
		return ExactMatch
	case isWildcard && matchesPattern(n.Key, key) && (n.Value == "" || matchesPattern(n.Value, value)):
		return PatternMatch
	case !isWildcard && n.Key == key && n.Value == "":
		return AnyValueMatch
	}
	return NoMatch
}

// EntryLabel returns the key and value of e for people: `service=checkout`.
func EntryLabel(e *ratelimitv3.RateLimitDescriptor_Entry) string {
	text := e.GetKey() + "=" + e.GetValue()
	if QuoteIfNeeded(e.GetKey()) != e.GetKey() || QuoteIfNeeded(e.GetValue()) != e.GetValue() {
		return strconv.Quote(text)
	}
	return text
}

// QuoteIfNeeded returns text. If text starts or ends with a space, or has characters that a terminal can't show, the result
// is text in quotes.
func QuoteIfNeeded(text string) string {
	if strings.TrimSpace(text) != text {
		return strconv.Quote(text)
	}
	return fields.Printable(text)
}

// Difference is the way in which an entry differs from a descriptor that it almost matches.
type Difference uint8

// The differences.
const (
	Unrelated Difference = iota // the entry is not like the descriptor

	// OtherCase means that upper and lower case differ.
	OtherCase

	// ExtraSpace means that a space at the start or end differs.
	ExtraSpace

	// JoinedText means that key, "_" and value make the same text, but the key ends at another place.
	JoinedText

	// PartOfPattern means that the value matches only a part of the pattern.
	PartOfPattern

	// UnmetCondition means that the key is the same and the value does not meet the condition.
	UnmetCondition

	// SimilarValue and SimilarKey mean that one or two characters differ.
	SimilarValue
	SimilarKey

	// OtherValue means that the key is the same and the value is quite different.
	OtherValue
)

// String returns the difference as in JSON.
func (d Difference) String() string {
	return [...]string{"", "other_case", "extra_space", "joined_text", "part_of_pattern", "unmet_condition", "similar_value", "similar_key", "other_value"}[d]
}

// difference returns how e differs from d. The entry must not match d.
func difference(e *ratelimitv3.RateLimitDescriptor_Entry, d *limitsfile.Descriptor) Difference {
	key, value := e.GetKey(), e.GetValue()
	hasSameKey, hasAnyValue := matchesPattern(d.Key, key), d.Value == ""
	// matchesWith reports whether the entry matches d after change has changed the texts of the entry and of d.
	matchesWith := func(change func(string) string) bool {
		return matchesPattern(change(d.Key), change(key)) && (hasAnyValue || matchesPattern(change(d.Value), change(value)))
	}
	switch {
	case d.Condition != nil && d.Key == key:
		return UnmetCondition
	case d.Condition != nil:
		return Unrelated
	case matchesWith(strings.ToLower):
		return OtherCase
	case matchesWith(strings.TrimSpace):
		return ExtraSpace
	case value != "" && !hasAnyValue && !d.HasWildcardKey && !d.HasWildcardValue && key+"_"+value == d.Key+"_"+d.Value:
		return JoinedText
	case hasSameKey && d.HasWildcardValue && partlyMatches(d.Value, value):
		return PartOfPattern
	case hasSameKey && !d.HasWildcardValue && isSimilar(value, d.Value):
		return SimilarValue
	case hasSameKey:
		return OtherValue
	case !d.HasWildcardKey && isSimilar(key, d.Key) && (hasAnyValue || matchesPattern(d.Value, value)):
		return SimilarKey
	}
	return Unrelated
}

// matchesPattern reports whether pattern, with or without a *, matches text.
func matchesPattern(pattern, text string) bool {
	p := limitsfile.NewPattern(pattern)
	return p.Match(text)
}

// partlyMatches reports whether text starts or ends like pattern, as /api does for /api/*.
func partlyMatches(pattern, text string) bool {
	p := limitsfile.NewPattern(pattern)
	return p.Prefix != "" && strings.HasPrefix(text, p.Prefix) ||
		p.Suffix != "" && strings.HasSuffix(text, p.Suffix) ||
		text != "" && len(p.Prefix)-len(text) <= 2 && strings.HasPrefix(p.Prefix, text)
}

// isSimilar reports whether b could be a misspelling of a.
func isSimilar(a, b string) bool {
	const minBytes, maxBytes, maxDistance = 3, 64, 2
	minLength, maxLength := min(len(a), len(b)), max(len(a), len(b))
	if minLength < minBytes || maxLength > maxBytes || maxLength-minLength > maxDistance {
		return false
	}
	return levenshtein.ComputeDistance(a, b) <= min(maxDistance, len(a)/3)
}

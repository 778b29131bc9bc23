package descriptors

import (
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

// matchText reports whether pattern, with or without a *, matches text.
func matchText(pattern, text string) bool {
	if !strings.Contains(pattern, "*") {
		return pattern == text
	}
	p := limitsfile.NewPattern(pattern)
	return p.Match(text)
}

// partlyMatches reports whether text starts or ends like pattern. /api is a part of /api/*.
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

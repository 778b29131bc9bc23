package limitsfile

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// maxCompared bounds the earlier siblings that a descriptor is compared with.
const maxCompared = 100

// warnUnreachable warns about descriptors that no request can reach, because an earlier match
// always wins.
func (r *reader) warnUnreachable() {
	for _, d := range r.set.Domains {
		r.warnUnreachableIn(d.Name, nil, d.Descriptors)
	}
}

func (r *reader) warnUnreachableIn(domain string, trail []*Descriptor, list []*Descriptor) {
	s := newCoverings(list)
	for _, d := range list {
		if s != nil {
			if by := s.covering(d); by != nil {
				r.warnUnreached(domain, trail, d, fmt.Sprintf("%s at %s matches first; remove one of them, or change the order or the value", by.Label(), fields.FileLine(by.File, by.Line)))
			} else if s.hasOwnDescriptors(d) {
				r.warnUnreached(domain, trail, d, "each of its values has a descriptor of its own, which matches first; remove the descriptor, or the others")
			}
		}
		if len(d.Descriptors) > 0 {
			r.warnUnreachableIn(domain, append(trail[:len(trail):len(trail)], d), d.Descriptors)
		}
	}
}

func (r *reader) warnUnreached(domain string, trail []*Descriptor, d *Descriptor, reason string) {
	if len(r.set.Warnings) >= maxProblems {
		return
	}
	path := Path(domain, append(trail[:len(trail):len(trail)], d))
	r.set.Warnings = append(r.set.Warnings, fields.Problem{File: d.File, Line: d.Line, Path: path, Reason: "no request reaches this descriptor, because " + reason})
}

// coverings has the siblings that can keep requests from others: all with a condition or a *.
type coverings struct {
	conditions map[string][]*Descriptor // by key, in file order
	wildcards  []covering               // in file order
	all        map[string]*Descriptor   // by key: a descriptor from which on no value is left
	values     map[keyValue]bool        // of descriptors with one value
}

// keyValue is the key and the value of a descriptor.
type keyValue struct{ key, value string }

// covering is a descriptor with a *.
type covering struct {
	*Descriptor
	key, value Pattern
}

// newCoverings returns the coverings of list, or nil if there are none.
func newCoverings(list []*Descriptor) *coverings {
	var s *coverings
	for _, d := range list {
		if d.Condition == nil && !d.WildcardKey && !d.WildcardValue {
			continue
		}
		if s == nil {
			s = &coverings{conditions: map[string][]*Descriptor{}, all: map[string]*Descriptor{}}
		}
		if d.Condition == nil {
			if len(s.wildcards) < maxCompared {
				s.wildcards = append(s.wildcards, covering{d, NewPattern(d.Key), NewPattern(cmp.Or(d.Value, "*"))})
			}
			continue
		}
		earlier := s.conditions[d.Key]
		isOpposite := func(other *Descriptor) bool { return d.Condition.IsOpposite(other.Condition) }
		if s.all[d.Key] == nil && (d.Condition.MatchesAll() || slices.ContainsFunc(earlier[:min(len(earlier), maxCompared)], isOpposite)) {
			s.all[d.Key] = d
		}
		s.conditions[d.Key] = append(earlier, d)
	}
	if s == nil {
		return nil
	}
	s.values = map[keyValue]bool{}
	for _, d := range list {
		if d.Condition == nil && !d.WildcardKey && !d.WildcardValue && d.Value != "" {
			s.values[keyValue{d.Key, d.Value}] = true
		}
	}
	return s
}

// hasOwnDescriptors reports whether d is an in, and each of its values has a descriptor of its own.
func (s *coverings) hasOwnDescriptors(d *Descriptor) bool {
	if d.Condition == nil || len(d.Condition.Values()) == 0 || len(d.Condition.Values()) > len(s.values) {
		return false
	}
	return !slices.ContainsFunc(d.Condition.Values(), func(value string) bool { return !s.values[keyValue{d.Key, value}] })
}

// covering returns a descriptor that matches each request that d could match, and that matches
// first. It returns nil if there is none.
func (s *coverings) covering(d *Descriptor) *Descriptor {
	if d.Condition == nil && !d.WildcardKey && !d.WildcardValue && d.Value != "" {
		return nil // an exact value comes first
	}
	for i, c := range s.conditions[d.Key] {
		if c == d || i == maxCompared {
			break
		}
		if c == s.all[d.Key] || d.Condition != nil && c.Condition.Covers(d.Condition) ||
			d.WildcardValue && c.Condition.CoversPrefix(NewPattern(d.Value).Prefix) {
			return c
		}
	}
	if d.Condition != nil {
		return nil
	}
	for i := range s.wildcards {
		w := &s.wildcards[i]
		if w.Descriptor == d {
			break
		}
		if !w.key.Match(d.Key) {
			continue
		}
		// A pattern that matches another pattern as a text matches all that the other matches,
		// because only its * can match the * of the other.
		if d.Value == "" && w.value.MatchesAll() || d.Value != "" && w.value.Match(d.Value) {
			return w.Descriptor
		}
	}
	return nil
}

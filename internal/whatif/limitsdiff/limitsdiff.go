// Package limitsdiff compares two sets of limits and reports which requests change.
//
// The package walks both trees of descriptors at once. For each descriptor of a tree, it makes a request that the descriptor
// matches, and finds the descriptor that wins in each tree. So it also finds requests that meet another rule than before.
package limitsdiff

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/condition"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// Kind is the effect of a change on requests.
type Kind string

// The kinds of change.
const (
	Same    Kind = "same"    // the same requests pass; only a name, metadata or metrics change
	Looser  Kind = "looser"  // more requests pass
	Tighter Kind = "tighter" // fewer requests pass
	Mixed   Kind = "mixed"   // some requests pass that were denied before, and other requests no longer pass
)

// Event is what happened to the rule of a change.
type Event string

// The events.
const (
	Added   Event = "added"
	Removed Event = "removed"
	Changed Event = "changed"
	Moved   Event = "moved" // the requests meet another rule than before
)

// Report is the difference between two sets of limits.
type Report struct {
	Kind       Kind     `json:"kind"` // the kind of all changes together; empty without changes
	Changes    []Change `json:"changes"`
	Incomplete bool     `json:"incomplete,omitempty"` // the limits have too many requests to compare all of them
}

// Change is a change for the requests of one descriptor.
type Change struct {
	Kind     Kind     `json:"kind"`
	Event    Event    `json:"event"`
	Requests string   `json:"requests"`           // the path of the descriptor that matches the requests
	Old      *Rule    `json:"old,omitempty"`      // the rule that limited the requests before, or nil
	New      *Rule    `json:"new,omitempty"`      // the rule that limits the requests now, or nil
	Counters string   `json:"counters,omitempty"` // "kept" or "new" if both rules count hits
	Reasons  []string `json:"reasons"`            // the differences in words
}

// Rule is a rule of a Change.
type Rule struct {
	Path   string `json:"path"`
	Place  string `json:"place"`
	Limits string `json:"limits"`
}

const maxRequests = 1_000_000 // bounds the requests that Compare compares

// Compare returns the changes from oldConfig to newConfig.
func Compare(oldConfig, newConfig *descriptors.Config) *Report {
	newComparison := &comparison{report: &Report{Changes: []Change{}}, reportedChanges: map[[3]string]bool{}, indexes: map[*limitsfile.Descriptor]*descriptors.Index{}}
	comparedDomains := map[string]bool{}
	for _, d := range slices.Concat(newConfig.Domains(), oldConfig.Domains()) {
		if comparedDomains[d.Name] {
			continue
		}
		comparedDomains[d.Name] = true
		oldDomain, newDomain := sourceDomain(oldConfig, d.Name), sourceDomain(newConfig, d.Name)
		newComparison.domain, newComparison.oldDomain, newComparison.newDomain = d.Name, oldDomain, newDomain
		newComparison.compareRequestLimits(oldDomain, newDomain)
		newComparison.walk(treePosition{list: oldDomain.Descriptors}, treePosition{list: newDomain.Descriptors}, nil, nil)
	}
	for _, change := range newComparison.report.Changes {
		newComparison.report.Kind = joinKinds(newComparison.report.Kind, change.Kind)
	}
	return newComparison.report
}

// sourceDomain returns the domain with this name as the files state it, or an empty domain.
func sourceDomain(config *descriptors.Config, name string) *limitsfile.Domain {
	if d := config.Domain(name); d != nil {
		return d.Source
	}
	return &limitsfile.Domain{Name: name}
}

func joinKinds(a, b Kind) Kind {
	switch {
	case a == "" || a == Same || a == b:
		return b
	case b == "" || b == Same:
		return a
	}
	return Mixed
}

type comparison struct {
	report               *Report
	domain               string
	oldDomain, newDomain *limitsfile.Domain
	requestCount         int                                           // the number of requests that walk has compared
	reportedChanges      map[[3]string]bool                            // the reported changes; the key is the old path, the new path, and the requests or ""
	indexes              map[*limitsfile.Descriptor]*descriptors.Index // the indexes of lists; the key is the first descriptor of the list
}

type treePosition struct {
	list  []*limitsfile.Descriptor // the descriptors that can match the next entry
	trail []*limitsfile.Descriptor // the descriptors that match the earlier entries
}

// positionAfter returns the position after the last entry, or an empty position if no descriptor matches.
func (c *comparison) positionAfter(position treePosition, entries []*ratelimitv3.RateLimitDescriptor_Entry) treePosition {
	if len(position.list) == 0 {
		return treePosition{}
	}
	index := c.indexes[position.list[0]]
	if index == nil {
		index = descriptors.NewIndex(position.list)
		c.indexes[position.list[0]] = index
	}
	d, _ := index.Find(entries)
	if d == nil {
		return treePosition{}
	}
	return treePosition{d.Descriptors, append(slices.Clip(position.trail), d)}
}

// walk compares all requests that begin with entries. The descriptors in path match these entries. oldPosition and
// newPosition are the positions after entries.
func (c *comparison) walk(oldPosition, newPosition treePosition, path []*limitsfile.Descriptor, entries []*ratelimitv3.RateLimitDescriptor_Entry) {
	list := slices.Concat(newPosition.list, oldPosition.list)
	overlaps, examples := overlapDescriptors(list), conditionExamples(list)
	comparedLabels := map[[2]string]bool{}
	for i, descriptor := range slices.Concat(list, overlaps, examples) {
		isExample := i >= len(list)+len(overlaps)
		label := [2]string{descriptor.Key, descriptor.Value}
		if !isExample && comparedLabels[label] {
			continue
		}
		comparedLabels[label] = true
		if c.requestCount++; c.requestCount > maxRequests {
			c.report.Incomplete = true
			return
		}
		nextEntry := &ratelimitv3.RateLimitDescriptor_Entry{Key: descriptor.Key, Value: descriptor.Value}
		if !isExample {
			nextEntry = exampleEntry(descriptor, entries)
		}
		nextEntries, nextPath := append(slices.Clip(entries), nextEntry), append(slices.Clip(path), descriptor)
		nextOldPosition, nextNewPosition := c.positionAfter(oldPosition, nextEntries), c.positionAfter(newPosition, nextEntries)
		c.compareRules(nextOldPosition.trail, nextNewPosition.trail, nextPath, i >= len(list))
		c.walk(nextOldPosition, nextNewPosition, nextPath, nextEntries)
	}
}

// conditionExamples returns descriptors for values near the borders of the conditions in list.
func conditionExamples(list []*limitsfile.Descriptor) []*limitsfile.Descriptor {
	var valueDescriptors []*limitsfile.Descriptor
	conditions := map[[2]string]*condition.Condition{} // the conditions of the descriptors with this key and this value
	for _, descriptor := range list {
		if descriptor.Condition == nil {
			continue
		}
		examples := descriptor.Condition.Examples()
		label := [2]string{descriptor.Key, descriptor.Value}
		if otherCondition := conditions[label]; otherCondition != nil { // the other tree has this condition too
			examples = condition.Differences(otherCondition, descriptor.Condition)
		}
		conditions[label] = descriptor.Condition
		for _, value := range examples {
			valueDescriptors = append(valueDescriptors, &limitsfile.Descriptor{Key: descriptor.Key, Value: value})
		}
	}
	return valueDescriptors
}

// exampleEntry returns an entry that descriptor matches after earlierEntries. If descriptor has a condition, the value is
// an example that meets the condition. If no example meets the condition, the value is the text of the condition.
func exampleEntry(descriptor *limitsfile.Descriptor, earlierEntries []*ratelimitv3.RateLimitDescriptor_Entry) *ratelimitv3.RateLimitDescriptor_Entry {
	if descriptor.Condition != nil {
		for _, value := range descriptor.Condition.Examples() {
			entry := &ratelimitv3.RateLimitDescriptor_Entry{Key: descriptor.Key, Value: value}
			conditionValue := condition.NewValue(append(slices.Clip(earlierEntries), entry))
			if isMet, err := descriptor.Condition.Match(&conditionValue, new(condition.Budget)); isMet && err == nil {
				return entry
			}
		}
		return &ratelimitv3.RateLimitDescriptor_Entry{Key: descriptor.Key, Value: descriptor.Value}
	}
	const anyText = "~" // stands for any text
	return &ratelimitv3.RateLimitDescriptor_Entry{
		Key:   strings.ReplaceAll(descriptor.Key, "*", anyText),
		Value: strings.ReplaceAll(cmp.Or(descriptor.Value, "*"), "*", anyText),
	}
}

const maxPatterns = 30 // bounds the patterns of one level that overlapDescriptors compares in pairs

// overlapDescriptors returns descriptors for texts that two patterns in list match. The order of the patterns decides
// which pattern wins.
func overlapDescriptors(list []*limitsfile.Descriptor) []*limitsfile.Descriptor {
	var patterns, textDescriptors []*limitsfile.Descriptor
	for _, d := range list {
		if d.HasWildcardValue && len(patterns) < maxPatterns {
			patterns = append(patterns, d)
		}
	}
	for _, pattern := range patterns {
		for _, otherPattern := range patterns {
			if pattern.Key == otherPattern.Key && pattern.Value != otherPattern.Value {
				textDescriptors = append(textDescriptors, &limitsfile.Descriptor{Key: pattern.Key, Value: strings.Replace(pattern.Value, "*", otherPattern.Value, 1), HasWildcardValue: true})
			}
		}
	}
	return textDescriptors
}

// compareRules reports the change between the rules at the ends of two trails, if the rules differ. isGenerated reports
// whether overlapDescriptors or conditionExamples made the descriptor. Such a descriptor causes no second change of the
// same rules.
func (c *comparison) compareRules(oldTrail, newTrail, path []*limitsfile.Descriptor, isGenerated bool) {
	oldRule, newRule := ruleAtEnd(oldTrail), ruleAtEnd(newTrail)
	change := Change{Requests: limitsfile.Path(c.domain, path), Event: Moved, Old: c.describeRule(oldTrail), New: c.describeRule(newTrail)}
	var rulePaths [3]string // the old path, the new path, and ""
	if oldRule != nil {
		rulePaths[0] = change.Old.Path
	}
	if newRule != nil {
		rulePaths[1] = change.New.Path
	}
	key := [3]string{rulePaths[0], rulePaths[1], change.Requests}
	isUncertain := mayMatchOthers(c.oldDomain.Descriptors, c.newDomain.Descriptors, oldTrail, newTrail)
	switch {
	case oldRule == nil && newRule == nil:
		if !isUncertain || len(oldTrail[len(oldTrail)-1].Descriptors) > 0 {
			return
		}
		change.Event = Changed
	case oldRule == nil:
		change.Event = Added
	case newRule == nil:
		change.Event = Removed
	case rulePaths[0] == rulePaths[1]:
		if oldRule.Summary() == newRule.Summary() && oldRule.HasSameAnswers(newRule) {
			return
		}
		change.Event, key = Changed, rulePaths
	}
	if c.reportedChanges[key] || isGenerated && c.reportedChanges[rulePaths] {
		return
	}
	c.reportedChanges[key], c.reportedChanges[rulePaths] = true, true
	change.Kind, change.Reasons = compareDescriptors(oldRule, newRule)
	if isUncertain {
		change.Kind, change.Reasons = Mixed, append(change.Reasons, "the condition changed: other requests may match")
	}
	if len(countedLimits(oldRule)) > 0 && len(countedLimits(newRule)) > 0 {
		change.Counters = "new"
		if oldRule.KeepsCounters(newRule) && slices.Equal(limitsfile.CounterPatterns(oldTrail), limitsfile.CounterPatterns(newTrail)) {
			change.Counters = "kept"
		}
	}
	c.report.Changes = append(c.report.Changes, change)
}

// mayMatchOthers reports whether a condition in one of two trails changed, and requests that are not compared may match
// only one of the trails. The lists have the siblings of the first descriptors.
func mayMatchOthers(oldList, newList, oldTrail, newTrail []*limitsfile.Descriptor) bool {
	if len(oldTrail) == 0 || len(newTrail) == 0 {
		return false
	}
	oldFirst, newFirst := oldTrail[0], newTrail[0]
	return hasOtherCondition(oldFirst, newFirst, newList) || hasOtherCondition(newFirst, oldFirst, oldList) || mayMatchOthers(oldFirst.Descriptors, newFirst.Descriptors, oldTrail[1:], newTrail[1:])
}

// hasOtherCondition reports whether otherList, the siblings of other, lacks the condition of d, and requests that are not
// compared may meet this condition but not match other.
func hasOtherCondition(d, other *limitsfile.Descriptor, otherList []*limitsfile.Descriptor) bool {
	return d.Condition != nil && other.Value != "" && !other.Condition.ExamplesShowDifference(d.Condition) && (d.Value == other.Value ||
		!slices.ContainsFunc(otherList, func(o *limitsfile.Descriptor) bool { return o.Key == d.Key && o.Value == d.Value }))
}

// ruleAtEnd returns the last descriptor of trail if the descriptor has a limit in force or quota_mode, and otherwise nil.
func ruleAtEnd(trail []*limitsfile.Descriptor) *limitsfile.Descriptor {
	if len(trail) == 0 {
		return nil
	}
	d := trail[len(trail)-1]
	if !d.QuotaMode && !slices.ContainsFunc(d.Limits, func(l *limitsfile.Limit) bool { return l.Enabled }) {
		return nil
	}
	return d
}

func (c *comparison) describeRule(trail []*limitsfile.Descriptor) *Rule {
	d := ruleAtEnd(trail)
	if d == nil {
		return nil
	}
	return &Rule{Path: limitsfile.Path(c.domain, trail), Place: fmt.Sprintf("%s:%d", d.File, d.Line), Limits: d.Summary()}
}

func (c *comparison) compareRequestLimits(oldDomain, newDomain *limitsfile.Domain) {
	oldSpec, isOldEnabled := oldDomain.RequestLimit()
	newSpec, isNewEnabled := newDomain.RequestLimit()
	if oldSpec == newSpec && isOldEnabled == isNewEnabled {
		return
	}
	kind, reason := Mixed, "the defaults of limits in requests differ"
	switch {
	case isOldEnabled && !isNewEnabled:
		kind, reason = Looser, "limits in requests are off (defaults: enabled: false)"
	case isNewEnabled && !isOldEnabled:
		kind, reason = Tighter, "limits in requests are in force again"
	case !isNewEnabled:
		return
	}
	requests := fields.Printable(c.domain) + " > limits in requests"
	c.report.Changes = append(c.report.Changes, Change{Kind: kind, Event: Changed, Requests: requests, Reasons: []string{reason}})
}

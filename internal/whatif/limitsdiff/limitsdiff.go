// Package limitsdiff compares two sets of limits and reports which requests change.
//
// The package walks both trees at once. For each descriptor of either tree it takes a request
// that the descriptor describes, and finds the descriptor that matches the request in each
// tree. So it also finds requests that meet another rule.
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
	Same    Kind = "same"    // the same requests pass: a name, metadata or metrics change
	Looser  Kind = "looser"  // more requests pass
	Tighter Kind = "tighter" // fewer requests pass
	Mixed   Kind = "mixed"   // some requests pass that did not, or the other way around
)

// Event is what happened to the rule of a change.
type Event string

// The events.
const (
	Added   Event = "added"
	Removed Event = "removed"
	Changed Event = "changed"
	Moved   Event = "moved" // the requests meet another rule
)

// Report is the difference between two sets of limits.
type Report struct {
	Kind       Kind     `json:"kind"` // of all changes together; empty without changes
	Changes    []Change `json:"changes"`
	Incomplete bool     `json:"incomplete,omitempty"` // the limits are too large to compare all of their requests
}

// Change is a change for the requests of one descriptor.
type Change struct {
	Kind     Kind     `json:"kind"`
	Event    Event    `json:"event"`
	Requests string   `json:"requests"`           // path of the descriptor that describes the requests
	Old      *Rule    `json:"old,omitempty"`      // the rule that limited the requests, if one did
	New      *Rule    `json:"new,omitempty"`      // the rule that limits the requests, if one does
	Counters string   `json:"counters,omitempty"` // "kept" or "new" if both rules count
	Reasons  []string `json:"reasons"`            // what differs, in words
}

// Rule is a rule of a Change.
type Rule struct {
	Path   string `json:"path"`
	Place  string `json:"place"`
	Limits string `json:"limits"`
}

const maxRequests = 1_000_000

// Compare returns the difference of current from old.
func Compare(old, current *descriptors.Config) *Report {
	c := &comparison{report: &Report{Changes: []Change{}}, seen: map[[3]string]bool{}, indexes: map[*limitsfile.Descriptor]*descriptors.Index{}}
	names := map[string]bool{}
	for _, d := range slices.Concat(current.Domains(), old.Domains()) {
		if names[d.Name] {
			continue
		}
		names[d.Name] = true
		c.domain = d.Name
		oldDomain, newDomain := source(old, d.Name), source(current, d.Name)
		c.compareRequestLimits(oldDomain, newDomain)
		c.walk(treePosition{list: oldDomain.Descriptors}, treePosition{list: newDomain.Descriptors}, nil, nil)
	}
	for _, change := range c.report.Changes {
		c.report.Kind = join(c.report.Kind, change.Kind)
	}
	return c.report
}

// source returns the domain of that name as its files state it, or an empty domain.
func source(config *descriptors.Config, name string) *limitsfile.Domain {
	if d := config.Domain(name); d != nil {
		return d.Source()
	}
	return &limitsfile.Domain{Name: name}
}

// join returns the kind of two changes together.
func join(a, b Kind) Kind {
	switch {
	case a == "" || a == Same || a == b:
		return b
	case b == "" || b == Same:
		return a
	}
	return Mixed
}

type comparison struct {
	report   *Report
	domain   string
	requests int                // compared so far
	seen     map[[3]string]bool // old path, new path, and requests or nothing
	indexes  map[*limitsfile.Descriptor]*descriptors.Index
}

// treePosition is a place in a tree: the descriptors that the next entry can match, and those matched so far.
type treePosition struct {
	list    []*limitsfile.Descriptor
	matched []*limitsfile.Descriptor
}

// next returns the position after the last of entries, or an empty one if nothing matches.
func (c *comparison) next(s treePosition, entries []*ratelimitv3.RateLimitDescriptor_Entry) treePosition {
	if len(s.list) == 0 {
		return treePosition{}
	}
	x := c.indexes[s.list[0]]
	if x == nil {
		x = descriptors.NewIndex(s.list)
		c.indexes[s.list[0]] = x
	}
	d, _ := x.Find(entries)
	if d == nil {
		return treePosition{}
	}
	return treePosition{d.Descriptors, append(slices.Clip(s.matched), d)}
}

// walk compares all requests that continue at old and current, after entries that the descriptors in path describe.
func (c *comparison) walk(old, current treePosition, path []*limitsfile.Descriptor, entries []*ratelimitv3.RateLimitDescriptor_Entry) {
	list := slices.Concat(current.list, old.list)
	overlapping, examples := overlaps(list), conditionExamples(list)
	all := slices.Concat(list, overlapping, examples)
	labels := map[[2]string]bool{}
	for i, d := range all {
		isExample := i >= len(list)+len(overlapping)
		label := [2]string{d.Key, d.Value}
		if !isExample && labels[label] {
			continue
		}
		labels[label] = true
		if c.requests++; c.requests > maxRequests {
			c.report.Incomplete = true
			return
		}
		e := &ratelimitv3.RateLimitDescriptor_Entry{Key: d.Key, Value: d.Value}
		if !isExample {
			e = exampleEntry(d, entries)
		}
		nextEntries, nextPath := append(slices.Clip(entries), e), append(slices.Clip(path), d)
		oldNext, newNext := c.next(old, nextEntries), c.next(current, nextEntries)
		c.compareRules(oldNext.matched, newNext.matched, nextPath, i >= len(list))
		c.walk(oldNext, newNext, nextPath, nextEntries)
	}
}

// conditionExamples returns descriptors for values near the borders of the conditions in list.
func conditionExamples(list []*limitsfile.Descriptor) []*limitsfile.Descriptor {
	var all []*limitsfile.Descriptor
	conditions := map[[2]string]*condition.Condition{} // by key and text
	for _, d := range list {
		if d.Condition == nil {
			continue
		}
		examples := d.Condition.Examples()
		label := [2]string{d.Key, d.Value}
		if other := conditions[label]; other != nil { // of the other tree
			examples = condition.Differences(other, d.Condition)
		}
		conditions[label] = d.Condition
		for _, value := range examples {
			all = append(all, &limitsfile.Descriptor{Key: d.Key, Value: value})
		}
	}
	return all
}

// exampleEntry returns an entry that d matches after the entries before it. Only a condition can return an entry that
// another descriptor names; if no example meets the condition, its text stands for all values that do.
func exampleEntry(d *limitsfile.Descriptor, before []*ratelimitv3.RateLimitDescriptor_Entry) *ratelimitv3.RateLimitDescriptor_Entry {
	if d.Condition != nil {
		for _, value := range d.Condition.Examples() {
			e := &ratelimitv3.RateLimitDescriptor_Entry{Key: d.Key, Value: value}
			v := condition.NewValue(append(slices.Clip(before), e))
			if isMet, err := d.Condition.Match(&v, new(condition.Budget)); isMet && err == nil {
				return e
			}
		}
		return &ratelimitv3.RateLimitDescriptor_Entry{Key: d.Key, Value: d.Value}
	}
	const anyText = "~" // takes the place of any text
	return &ratelimitv3.RateLimitDescriptor_Entry{
		Key:   strings.ReplaceAll(d.Key, "*", anyText),
		Value: strings.ReplaceAll(cmp.Or(d.Value, "*"), "*", anyText),
	}
}

const maxPatterns = 30 // of one level that are compared in pairs

// overlaps returns descriptors for texts that two patterns of list match, about which their order decides.
func overlaps(list []*limitsfile.Descriptor) []*limitsfile.Descriptor {
	var patterns, all []*limitsfile.Descriptor
	for _, d := range list {
		if d.WildcardValue && len(patterns) < maxPatterns {
			patterns = append(patterns, d)
		}
	}
	for _, p := range patterns {
		for _, q := range patterns {
			if p.Key == q.Key && p.Value != q.Value {
				all = append(all, &limitsfile.Descriptor{Key: p.Key, Value: strings.Replace(p.Value, "*", q.Value, 1), WildcardValue: true})
			}
		}
	}
	return all
}

// compareRules adds the change between the rules of two lists of matched descriptors, if there is one. An overlap is
// added only if no earlier change has the same rules.
func (c *comparison) compareRules(oldMatched, newMatched, path []*limitsfile.Descriptor, isOverlap bool) {
	oldRule, newRule := last(oldMatched), last(newMatched)
	change := Change{Requests: limitsfile.Path(c.domain, path), Event: Moved, Old: c.rule(oldMatched), New: c.rule(newMatched)}
	var rules [3]string // the old and the new path
	if oldRule != nil {
		rules[0] = change.Old.Path
	}
	if newRule != nil {
		rules[1] = change.New.Path
	}
	key := [3]string{rules[0], rules[1], change.Requests}
	switch {
	case oldRule == nil && newRule == nil:
		return
	case oldRule == nil:
		change.Event = Added
	case newRule == nil:
		change.Event = Removed
	case rules[0] == rules[1]:
		if oldRule.Summary() == newRule.Summary() && oldRule.HasSameAnswers(newRule) {
			return
		}
		change.Event, key = Changed, rules
	}
	if c.seen[key] || isOverlap && c.seen[rules] {
		return
	}
	c.seen[key], c.seen[rules] = true, true
	change.Kind, change.Reasons = compareDescriptors(oldRule, newRule)
	if len(counted(oldRule)) > 0 && len(counted(newRule)) > 0 {
		change.Counters = "new"
		if oldRule.KeepsCounters(newRule) && slices.Equal(limitsfile.CounterPatterns(oldMatched), limitsfile.CounterPatterns(newMatched)) {
			change.Counters = "kept"
		}
	}
	c.report.Changes = append(c.report.Changes, change)
}

// last returns the last descriptor of matched, or nil if it has no limit in force and no quota_mode.
func last(matched []*limitsfile.Descriptor) *limitsfile.Descriptor {
	if len(matched) == 0 {
		return nil
	}
	d := matched[len(matched)-1]
	if !d.QuotaMode && !slices.ContainsFunc(d.Limits, func(l *limitsfile.Limit) bool { return l.Enabled }) {
		return nil
	}
	return d
}

func (c *comparison) rule(matched []*limitsfile.Descriptor) *Rule {
	d := last(matched)
	if d == nil {
		return nil
	}
	return &Rule{Path: limitsfile.Path(c.domain, matched), Place: fmt.Sprintf("%s:%d", d.File, d.Line), Limits: d.Summary()}
}

func (c *comparison) compareRequestLimits(old, current *limitsfile.Domain) {
	oldSpec, oldOn := old.RequestLimit()
	newSpec, newOn := current.RequestLimit()
	if oldSpec == newSpec && oldOn == newOn {
		return
	}
	kind, reason := Mixed, "the defaults of limits in requests differ"
	switch {
	case oldOn && !newOn:
		kind, reason = Looser, "limits in requests are off (defaults: enabled: false)"
	case newOn && !oldOn:
		kind, reason = Tighter, "limits in requests are in force again"
	case !newOn:
		return
	}
	requests := fields.Printable(c.domain) + " > limits in requests"
	c.report.Changes = append(c.report.Changes, Change{Kind: kind, Event: Changed, Requests: requests, Reasons: []string{reason}})
}

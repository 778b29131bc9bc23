// Package limitsfile reads limits files, xDS resources and overrides, checks them against one schema, and returns
// the descriptors and limits that they state. A problem is a mistake in a file, with its place and remedy.
package limitsfile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	_ "time/tzdata" // for systems without time zones

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-81f232ab/rls/descriptors/condition"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// File is the content of one limits file.
type File struct {
	// Name is shown in problems. It is usually a path.
	Name string
	Data []byte
}

// Options are the options for reading limits files.
type Options struct {
	// MergeDomains unites files of one domain. Without it, a domain in two files is a problem.
	MergeDomains bool

	// CalendarMonths lets the windows of months without a timezone follow the calendar of UTC.
	CalendarMonths bool

	// LimitedStore names a shared place of counters that can't keep holds and leases, or is empty. A limit with
	// shared holds is then a problem, and a lease a warning.
	LimitedStore string

	// MaxFileBytes is the maximum size of one file. 0 means DefaultMaxFileBytes.
	MaxFileBytes int

	// MaxNodes is the maximum number of keys, values and list items read from one file. Nodes behind an alias count
	// at each use. 0 means DefaultMaxNodes.
	MaxNodes int

	// ReadList returns the content of the file of a list. If it is nil, a list in a file is a problem.
	ReadList func(path string) ([]byte, error)

	// Pause, unless nil, is called after each few milliseconds of reading a large file, so that calls can use the
	// processor. Without it, reading uses all processors.
	Pause func()
}

// Set is a checked set of limits files. It is immutable.
type Set struct {
	Domains []*Domain // in file order

	// ShadowMode is the switch that replaces SHADOW_MODE, or nil.
	ShadowMode *ShadowMode

	// Warnings reports valid input that is probably a mistake.
	Warnings fields.Problems
}

// Domain is a namespace of descriptors.
type Domain struct {
	Name        string
	Descriptors []*Descriptor // in file order

	// File and Line are the place where the domain was read first.
	File string
	Line int

	// Off is the switch that takes all limits of the domain out of force, or nil.
	OffSwitch *AppliedOverride

	defaults       *object // nil if none
	defaultsFile   string
	calendarMonths bool // see Options
	hasProblems    bool // see ParseXDS
}

// ShadowMode is a switch in force that replaces SHADOW_MODE.
type ShadowMode struct {
	On bool
	Notes
}

// RequestLimit returns the defaults for a limit that is part of a request, and whether such limits are in force.
// Such a limit has a window, so a default algorithm with holds is not for it.
func (d *Domain) RequestLimit() (spec limit.Spec, enabled bool) {
	v := d.defaults.field("enabled")
	spec = d.newSpec(nil)
	if spec.Algorithm.HasHolds() {
		spec.Algorithm, spec.Hold = limit.DefaultAlgorithm, 0
		spec.ChargeDenied = limit.DefaultAlgorithm.DefaultChargeDenied()
	}
	return spec, !v.isPresent() || v.Flag
}

// WithCalendar returns s with its default time zone.
func (d *Domain) WithCalendar(s limit.Spec) limit.Spec {
	if d.calendarMonths && s.Unit == limit.Month && s.Timezone == "" && s.CanHaveTimezone() {
		s.Timezone = "UTC"
	}
	return s
}

// Descriptor is one descriptor of a limits file, or a copy of one for a single value.
type Descriptor struct {
	// Key and Value of matching entries can be patterns. Value can be the text of Condition.
	Key, Value string

	// Condition is the test that takes the place of the value, or nil.
	Condition *condition.Condition

	WildcardKey, WildcardValue    bool // a * in Key, in Value
	DetailedMetric, ValueToMetric bool
	ShareThreshold                bool

	// EnforcedPercent is the percentage of the keys that can be denied. 0 stands for 100.
	EnforcedPercent float64

	RuleFields
	Limits      []*Limit
	Descriptors []*Descriptor // children, in file order

	// CopiedFrom is the original of a copy that an override made, or nil.
	Original *Descriptor

	// CounterPatterns, if not nil, is the result of CounterPatterns after an override.
	CounterPatterns []string

	// Overrides has the overrides that changed the descriptor, in the order in which they apply, switches last.
	Overrides []AppliedOverride

	// Created has the notes of a rule that was created at run time, or is nil.
	Created *Notes

	// File and Line are the place of the descriptor.
	File string
	Line int
}

// RuleFields are the fields of a descriptor that its rule in force has too.
type RuleFields struct {
	ShadowMode, QuotaMode bool

	// NoRefunds rejects requests that refund hits of the rule.
	NoRefunds bool

	// MaxHits bounds the hits of one call. 0 means no bound.
	MaxHits uint32

	// Denial is added to the responses that deny a request, or nil.
	Denial *Denial

	// Metadata is shared by all responses and must not be changed.
	Metadata *structpb.Struct
}

// AppliedOverride is an override of a descriptor, or a switch of the limits of a descriptor or a domain.
type AppliedOverride struct {
	Target string // empty for the switch of all domains
	Notes
	IsSwitch bool // a switch

	// BaseLimits is the Summary of the descriptor without the override; empty for a domain.
	BaseLimits string
}

// Limit is one limit of a descriptor, in force or not.
type Limit struct {
	*limit.Limit // nil if Unlimited
	Unlimited    bool
	Enabled      bool

	// Name is shown in responses. Replaces of other limits refers to it.
	Name string

	// Replaces names the limits that don't count in a request with this limit.
	Replaces []string

	// Line is the line of the limit in the file, or 0 if it is unknown.
	Line int

	// defaultFields come from the defaults of the domain, and overrideFields from an override.
	defaultFields, overrideFields fieldSet

	// specBeforeUnlimited is the spec before an override with unlimited: true.
	specBeforeUnlimited *limit.Spec
}

// HasManyValues reports whether Value is a pattern or the text of a condition.
func (d *Descriptor) HasManyValues() bool { return d.WildcardValue || d.Condition != nil }

// OffSwitch returns the switch that takes all limits of d out of force, or nil.
func (d *Descriptor) OffSwitch() *AppliedOverride {
	if n := len(d.Overrides); n > 0 && d.Overrides[n-1].IsSwitch {
		return &d.Overrides[n-1]
	}
	return nil
}

// Label returns the descriptor's key and value for messages: `service=checkout`.
func (d *Descriptor) Label() string {
	if d.Value == "" {
		return fields.Printable(d.Key)
	}
	return fields.Printable(d.Key + "=" + d.Value)
}

// KeepsCounters reports whether each limit of changed has a limit of d with the same algorithm, window and scope.
func (d *Descriptor) KeepsCounters(changed *Descriptor) bool {
	if d.ShareThreshold != changed.ShareThreshold {
		return false
	}
	for _, l := range changed.Limits {
		if l.Enabled && !l.Unlimited && limitWithSameCounter(d.Limits, l) == nil {
			return false
		}
	}
	return true
}

// HasSameAnswers reports whether d and other add the same metadata, body and headers to responses.
func (d *Descriptor) HasSameAnswers(other *Descriptor) bool {
	return proto.Equal(d.Metadata, other.Metadata) && d.Denial.equal(other.Denial)
}

// CounterPatterns returns, for each descriptor from a domain's root to one descriptor, the pattern or condition
// that takes the place of the value in the names of counters, or an empty text. It returns nil if no descriptor has
// share_threshold.
//
// A copy for a single value keeps the counter of its original, unless an override changed the last descriptor.
func CounterPatterns(trail []*Descriptor) []string {
	patterns := trail[len(trail)-1].CounterPatterns
	if patterns != nil {
		return patterns
	}
	for i, d := range trail {
		if d = cmp.Or(d.Original, d); d.ShareThreshold {
			if patterns == nil {
				patterns = make([]string, len(trail))
			}
			patterns[i] = cmp.Or(d.Value, "*")
		}
	}
	return patterns
}

// Path returns the path to the last descriptor of trail: `shop > service=checkout > path`.
func Path(domain string, trail []*Descriptor) string {
	parts := append(make([]string, 0, 8), fields.Printable(domain))
	for _, d := range trail {
		parts = append(parts, d.Label())
	}
	return strings.Join(parts, " > ")
}

// place is a descriptor in its file. Its path is computed at the end, because a key can follow the problem.
type place struct {
	parent     *place      // nil for the domain
	domain     string      // as in a path; empty for a descriptor
	number     int         // of the descriptor below parent, from 0
	descriptor *Descriptor // nil for the domain
}

func (p *place) keys() []string {
	if p == nil || p.parent == nil {
		return nil
	}
	return append(p.parent.keys(), p.descriptor.Key)
}

func (p *place) path() string {
	var labels []string
	for ; p != nil; p = p.parent {
		switch {
		case p.descriptor == nil:
			labels = append(labels, p.domain)
		case p.descriptor.Key == "":
			labels = append(labels, fmt.Sprintf("descriptor %d", p.number+1))
		default:
			labels = append(labels, p.descriptor.Label())
		}
	}
	slices.Reverse(labels)
	return strings.TrimPrefix(strings.Join(labels, " > "), " > ")
}

// pathBytes returns about the memory of the path to p in a rule.
func (p *place) pathBytes() (bytes int) {
	for ; p != nil && p.descriptor != nil; p = p.parent {
		bytes += len(p.descriptor.Key) + len(p.descriptor.Value) + 40
	}
	return bytes
}

// Pattern is a key or value in which * stands for any number of bytes. It has no escapes.
type Pattern struct {
	Literal        bool // there is no *, and Prefix is the whole pattern
	Prefix, Suffix string
	Middle         []string // non-empty parts between two *

	minBytes int // the least length of a matching text
}

// NewPattern returns the pattern with this text.
func NewPattern(text string) Pattern {
	parts := strings.Split(text, "*")
	last := len(parts) - 1
	if last == 0 {
		return Pattern{Literal: true, Prefix: text, minBytes: len(text)}
	}
	p := Pattern{Prefix: parts[0], Suffix: parts[last]}
	for _, part := range parts {
		p.minBytes += len(part)
	}
	for _, part := range parts[1:last] {
		if part != "" {
			p.Middle = append(p.Middle, part)
		}
	}
	return p
}

// Match reports whether p matches all of text.
func (p *Pattern) Match(text string) bool {
	if p.Literal {
		return text == p.Prefix
	}
	if len(text) < p.minBytes || text[:len(p.Prefix)] != p.Prefix || text[len(text)-len(p.Suffix):] != p.Suffix {
		return false
	}
	if len(p.Middle) == 0 {
		return true
	}
	text = text[len(p.Prefix) : len(text)-len(p.Suffix)]
	for _, part := range p.Middle {
		i := strings.Index(text, part)
		if i < 0 {
			return false
		}
		text = text[i+len(part):]
	}
	return true
}

// MatchesAll reports whether p matches every text: p has nothing but *.
func (p *Pattern) MatchesAll() bool { return !p.Literal && p.minBytes == 0 }

// Package limitsfile reads limits files, xDS resources and overrides, checks them against one schema, and returns
// their descriptors and limits. A problem is a mistake in a file, with a place and a remedy.
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
	Name string // the name of the file in problems, usually a path
	Data []byte
}

// Options are the options for reading limits files.
type Options struct {
	// MergeDomains merges the files of one domain. If it is false, a domain in two files is a problem.
	MergeDomains bool

	// CalendarMonths lets the windows of months without a timezone follow the calendar of UTC.
	CalendarMonths bool

	// StoreWithoutHolds is the name of a store of shared counters that can't keep holds, leases and quotas; empty without
	// such a store. With a StoreWithoutHolds, shared holds and quotas are problems, and a lease is a warning.
	StoreWithoutHolds string

	// HasGlobalRedis means that regions divide the limits of scope global. Without it, scope global is scope region.
	HasGlobalRedis bool

	// MaxFileBytes is the maximum size of one file. 0 means DefaultMaxFileBytes.
	MaxFileBytes int

	// MaxNodes is the maximum number of keys, values and list items of one file. Nodes behind an alias count at each
	// use. 0 means DefaultMaxNodes.
	MaxNodes int

	// ReadList returns the content of the file of a list. If ReadList is nil, a list in a file is a problem.
	ReadList func(path string) ([]byte, error)

	// Pause is called every few milliseconds while a large file is read, so that calls can use the processor. It may
	// be nil.
	Pause func()
}

// Set is a checked set of limits files. It is immutable.
type Set struct {
	Domains []*Domain // the domains in file order

	// ShadowMode is the switch that replaces SHADOW_MODE, or nil.
	ShadowMode *ShadowMode

	// Warnings report valid input that is probably a mistake.
	Warnings fields.Problems
}

// Domain is a namespace of descriptors.
type Domain struct {
	Name        string
	Descriptors []*Descriptor // the descriptors in file order

	// File and Line are the place of the domain. If several files have the domain, the place is in the first file.
	File string
	Line int

	// OffSwitch is the switch that turns off all limits of the domain, or nil.
	OffSwitch *AppliedOverride

	// QuotaOrder has the keys of quota buckets that come first in their descriptors.
	QuotaOrder []string

	defaults       *object // nil without defaults
	defaultsFile   string
	calendarMonths bool // the value of Options.CalendarMonths
	hasProblems    bool // a resource of the domain has problems; only ParseXDS sets this field
}

// ShadowMode is a switch in force that replaces SHADOW_MODE.
type ShadowMode struct {
	IsOn bool
	Notes
}

// RequestLimit returns the defaults for a limit that is part of a request. isEnabled reports whether such limits are in
// force. Such a limit has a window, so it does not use a default algorithm with holds.
func (d *Domain) RequestLimit() (spec limit.Spec, isEnabled bool) {
	enabled := d.defaults.field("enabled")
	spec = d.newSpec(nil)
	if spec.Algorithm.HasHolds() {
		spec.Algorithm, spec.Hold = limit.DefaultAlgorithm, 0
		spec.ChargeDenied = limit.DefaultAlgorithm.DefaultChargeDenied()
	}
	return spec, !enabled.isPresent() || enabled.Flag
}

// WithCalendar returns s. If s counts months without a time zone, and Options.CalendarMonths is true, the result has the
// time zone UTC.
func (d *Domain) WithCalendar(s limit.Spec) limit.Spec {
	if d.calendarMonths && s.Unit == limit.Month && s.Timezone == "" && s.CanHaveTimezone() {
		s.Timezone = "UTC"
	}
	return s
}

// Descriptor is a descriptor of a limits file, or a copy of such a descriptor for a single value.
type Descriptor struct {
	// Key and Value are the key and value of the entries that match, or patterns. With a Condition, Value is the text of
	// the Condition, such as "cidr(10.0.0.0/8)". An empty Value matches any value.
	Key, Value string

	// Condition is the test that replaces the value, or nil.
	Condition *condition.Condition

	HasWildcardKey, HasWildcardValue bool // Key has a *; Value has a *
	DetailedMetric, ValueToMetric    bool
	ShareThreshold                   bool

	// EnforcedPercent is the percentage of the keys that can be denied. 0 means 100.
	EnforcedPercent float64

	RuleFields
	Limits      []*Limit
	Descriptors []*Descriptor // the children in file order

	// Original is the descriptor from which an override made this copy. It is nil if the descriptor is not a copy.
	Original *Descriptor

	// CounterPatterns is the result of the function CounterPatterns if an override has changed the descriptor, otherwise nil.
	CounterPatterns []string

	// Overrides has the overrides that changed the descriptor, in the order in which they apply. Switches are last.
	Overrides []AppliedOverride

	// CreationNotes has the notes of a rule that was created at run time. It is nil for other rules.
	CreationNotes *Notes

	// File and Line are the place of the descriptor.
	File string
	Line int
}

// RuleFields are the fields that a descriptor and its rule in force both have.
type RuleFields struct {
	ShadowMode, QuotaMode bool

	// NoRefunds rejects requests that refund hits of the rule.
	NoRefunds bool

	// MaxHits bounds the hits of one call. 0 means no bound.
	MaxHits uint32

	// Denial has the body and the headers that the rule adds to the responses which deny a request. It can be nil.
	Denial *Denial

	// Metadata is the metadata of responses. All responses share it, so nobody may change it.
	Metadata *structpb.Struct

	// Quota says how Envoys share the limit, or is nil.
	Quota *Quota
}

// AppliedOverride is an override of a descriptor, or a switch of the limits of a descriptor or a domain.
type AppliedOverride struct {
	Target string // such as "shop|tenant=acme"; empty for the switch of all domains
	Notes
	IsSwitch bool // the override is a switch

	// BaseLimits is the Summary of the descriptor without the override. It is empty for the switch of a domain.
	BaseLimits string
}

// Limit is one limit of a descriptor, in force or not.
type Limit struct {
	*limit.Limit // nil if Unlimited
	Unlimited    bool
	Enabled      bool

	// Name is the name in responses. Other limits refer to Name in Replaces.
	Name string

	// Replaces has the names of the limits that don't count in a request with this limit.
	Replaces []string

	// Line is the line of the limit in the file, or 0 if it is unknown.
	Line int

	// defaultFields come from the defaults of the domain, and overrideFields from an override.
	defaultFields, overrideFields fieldSet

	// specBeforeUnlimited is the spec before an override with unlimited: true.
	specBeforeUnlimited *limit.Spec
}

// MatchesManyValues reports whether Value is a pattern or the text of a condition.
func (d *Descriptor) MatchesManyValues() bool { return d.HasWildcardValue || d.Condition != nil }

// OffSwitch returns the switch that turns off all limits of d, or nil.
func (d *Descriptor) OffSwitch() *AppliedOverride {
	if n := len(d.Overrides); n > 0 && d.Overrides[n-1].IsSwitch {
		return &d.Overrides[n-1]
	}
	return nil
}

// Label returns the key and value of d for messages: `service=checkout`.
func (d *Descriptor) Label() string {
	if d.Value == "" {
		return fields.Printable(d.Key)
	}
	return fields.Printable(d.Key + "=" + d.Value)
}

// KeepsCounters reports whether d has, for each limit of newDescriptor, a limit with the same algorithm, window and scope.
func (d *Descriptor) KeepsCounters(newDescriptor *Descriptor) bool {
	hasNewCounter := func(l *Limit) bool { return l.Enabled && !l.Unlimited && limitWithSameCounter(d.Limits, l) == nil }
	return d.ShareThreshold == newDescriptor.ShareThreshold && !slices.ContainsFunc(newDescriptor.Limits, hasNewCounter)
}

// HasSameAnswers reports whether d and other add the same metadata, body and headers to responses.
func (d *Descriptor) HasSameAnswers(other *Descriptor) bool {
	return proto.Equal(d.Metadata, other.Metadata) && d.Denial.equal(other.Denial)
}

// CounterPatterns returns a text for each descriptor of trail. trail has the descriptors from the root of a domain to one
// descriptor. The text is the pattern or condition that replaces the value in the names of counters, or "" if the names
// have the value. CounterPatterns returns nil if no descriptor has share_threshold.
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

// place is the place of a descriptor in its file. The path of a place is known only after the file was read, because the
// key of the descriptor can stand after a problem.
type place struct {
	parent     *place      // nil for the domain
	domain     string      // the domain in the path; empty for a descriptor
	index      int         // the index of the descriptor in the list below parent
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
			labels = append(labels, fmt.Sprintf("descriptor %d", p.index+1))
		default:
			labels = append(labels, p.descriptor.Label())
		}
	}
	slices.Reverse(labels)
	return strings.TrimPrefix(strings.Join(labels, " > "), " > ")
}

func (p *place) pathBytes() (bytes int) {
	const overhead = 40 // bytes for each descriptor, beside its key and value
	for ; p != nil && p.descriptor != nil; p = p.parent {
		bytes += len(p.descriptor.Key) + len(p.descriptor.Value) + overhead
	}
	return bytes
}

// Pattern is a key or value in which * means any number of bytes. It has no escapes.
type Pattern struct {
	IsLiteral      bool // the pattern has no *, and Prefix is the whole pattern
	Prefix, Suffix string
	MiddleParts    []string // the parts between two *, except empty parts

	minBytes int // the smallest length of a matching text
}

// NewPattern returns the pattern with this text.
func NewPattern(text string) Pattern {
	parts := strings.Split(text, "*")
	lastIndex := len(parts) - 1
	if lastIndex == 0 {
		return Pattern{IsLiteral: true, Prefix: text, minBytes: len(text)}
	}
	p := Pattern{Prefix: parts[0], Suffix: parts[lastIndex]}
	for _, part := range parts {
		p.minBytes += len(part)
	}
	for _, part := range parts[1:lastIndex] {
		if part != "" {
			p.MiddleParts = append(p.MiddleParts, part)
		}
	}
	return p
}

// Match reports whether p matches all of text.
func (p *Pattern) Match(text string) bool {
	if p.IsLiteral {
		return text == p.Prefix
	}
	if len(text) < p.minBytes || text[:len(p.Prefix)] != p.Prefix || text[len(text)-len(p.Suffix):] != p.Suffix {
		return false
	}
	if len(p.MiddleParts) == 0 {
		return true
	}
	text = text[len(p.Prefix) : len(text)-len(p.Suffix)]
	for _, part := range p.MiddleParts {
		i := strings.Index(text, part)
		if i < 0 {
			return false
		}
		text = text[i+len(part):]
	}
	return true
}

// MatchesAll reports whether p matches every text, as * and ** do.
func (p *Pattern) MatchesAll() bool { return !p.IsLiteral && p.minBytes == 0 }

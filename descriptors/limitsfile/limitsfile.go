// Package limitsfile reads limits files, xDS resources and overrides, checks them
// against one schema, and returns the descriptors and limits that they state.
//
// Terms:
//
//   - domain: a namespace of descriptors; a limits file has one;
//   - descriptor: a node of the domain's tree, which matches one entry of a request;
//   - wildcard: a descriptor with a * in its key or value;
//   - problem: a mistake in a file, with its place and what would be right.
package limitsfile

import (
	"cmp"
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-81f232ab/rls/limit"
)

// File is the content of one limits file.
type File struct {
	// Name is what problems show, usually a path.
	Name string
	Data []byte
}

// Options says how to read limits files.
type Options struct {
	// MergeDomains unites files of one domain at their root level. Without it a
	// domain in two files is a problem.
	MergeDomains bool

	// MaxFileBytes bounds the size of one file; 0 means DefaultMaxFileBytes.
	MaxFileBytes int

	// MaxNodes bounds the keys, values and list items read from one file. Those
	// behind an alias count each time the alias is used. 0 means DefaultMaxNodes.
	MaxNodes int
}

// Set is a checked set of limits files. It is immutable.
type Set struct {
	Domains []*Domain // in file order

	// Warnings is valid input that is probably a mistake.
	Warnings Problems
}

// Domain is a namespace of descriptors.
type Domain struct {
	Name        string
	Descriptors []*Descriptor // in file order

	// File and Line are where the domain was read first.
	File string
	Line int

	defaults     *object // nil if none
	defaultsFile string
}

// RequestLimit returns the defaults for a limit that is part of a request: its spec
// without number and window, and whether such limits are in force.
func (d *Domain) RequestLimit() (spec limit.Spec, enabled bool) {
	v := d.defaults.field("enabled")
	return newSpec(nil, d.defaults), !v.given() || v.flag
}

// Descriptor is one descriptor of a limits file, or a copy of one that an override
// made for a single value.
type Descriptor struct {
	Key, Value string

	WildcardKey, WildcardValue    bool // a * in Key, in Value
	ShadowMode, QuotaMode         bool
	DetailedMetric, ValueToMetric bool
	ShareThreshold                bool

	Metadata    *structpb.Struct
	Limits      []*Limit
	Descriptors []*Descriptor // children, in file order

	// CopiedFrom is the descriptor that an override copied to make this one for a
	// single value; nil for a descriptor of a file.
	CopiedFrom *Descriptor

	// CounterPatterns is the result of the function CounterPatterns once an override has
	// changed the descriptor; nil if none has.
	CounterPatterns []string

	// File and Line are where it was read.
	File string
	Line int
}

// Limit is one limit of a descriptor, in force or not.
type Limit struct {
	*limit.Limit // nil if Unlimited
	Unlimited    bool
	Enabled      bool

	// Name is shown in responses and is what Replaces of other limits refer to.
	Name string

	// Replaces names the limits that don't count in a request that matches this one.
	Replaces []string

	line int

	// coveredSpec is the spec that an override with unlimited: true covers, else nil.
	// A later override can go back to its numbers.
	coveredSpec *limit.Spec
}

// Label returns the descriptor's key and value for messages: `service=checkout`.
func (d *Descriptor) Label() string {
	if d.Value == "" {
		return Printable(d.Key)
	}
	return Printable(d.Key + "=" + d.Value)
}

// KeepsCounters reports whether changed uses the counters of d: each limit of changed
// has a limit of d with the same algorithm, window and scope.
func (d *Descriptor) KeepsCounters(changed *Descriptor) bool {
	if d.ShareThreshold != changed.ShareThreshold {
		return false
	}
	for _, l := range changed.Limits {
		if l.Enabled && !l.Unlimited && sameCounter(d.Limits, l) == nil {
			return false
		}
	}
	return true
}

// CounterPatterns returns, for each descriptor of trail, the pattern that stands for its
// value in the names of counters; empty for the value itself. It is nil if no descriptor
// has share_threshold. trail is the descriptors from a domain's root to one of them.
//
// A copy for a single value keeps the counter of the descriptor that it was copied from,
// unless an override changed the last descriptor.
func CounterPatterns(trail []*Descriptor) []string {
	patterns := trail[len(trail)-1].CounterPatterns
	if patterns != nil {
		return patterns
	}
	for i, d := range trail {
		if d = cmp.Or(d.CopiedFrom, d); d.ShareThreshold {
			if patterns == nil {
				patterns = make([]string, len(trail))
			}
			patterns[i] = cmp.Or(d.Value, "*")
		}
	}
	return patterns
}

// Path returns the path to the last descriptor of trail:
// `shop > service=checkout > path`.
func Path(domain string, trail []*Descriptor) string {
	parts := append(make([]string, 0, 8), Printable(domain))
	for _, d := range trail {
		parts = append(parts, d.Label())
	}
	return strings.Join(parts, " > ")
}

// place is a descriptor in its file, for problems. Its path is made once the file is read,
// because the key of a descriptor can come after a problem in it.
type place struct {
	parent *place // nil for the domain
	name   string // its Label, or its number until its key is known
}

// newPlace returns the place of the i-th descriptor below parent.
func newPlace(parent *place, i int) *place {
	return &place{parent, fmt.Sprintf("descriptor %d", i+1)}
}

// setKey names p by the key and value of d, if d has a key.
func (p *place) setKey(d *Descriptor) {
	if d.Key != "" {
		p.name = d.Label()
	}
}

// path returns the path to p: `shop > service=checkout > path`.
func (p *place) path() string {
	if p == nil {
		return ""
	}
	if parent := p.parent.path(); parent != "" {
		return parent + " > " + p.name
	}
	return p.name
}

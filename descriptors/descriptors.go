// Package descriptors turns limits files into an immutable Config and finds in
// it the rule for a request descriptor.
//
// Terms:
//
//   - domain: a namespace of rules; a limits file holds one;
//   - descriptor: in a request an ordered list of entries (key, value); in a
//     limits file a node of the domain's tree, which matches one entry;
//   - rule: a descriptor of a limits file that has limits, with the path to it;
//   - wildcard: a descriptor with a * in its key or value; the * stands for any
//     number of characters of any kind.
//
// Keys and values are compared apart. envoyproxy/ratelimit joins them with _
// first, so that there an entry (a_b, c) meets a rule for (a, b_c).
package descriptors

import (
	"slices"
	"strings"
	"sync/atomic"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-81f232ab/rls/limit"
)

// Config is a compiled set of limits files. Once it is in force (Store.Set) it is
// immutable and safe for concurrent use.
type Config struct {
	domains map[string]*Domain
	order   []*Domain // in file order
}

// Domain returns the domain of that name, nil if there is none.
func (c *Config) Domain(name string) *Domain { return c.domains[name] }

// Domains returns all domains, sorted by name.
func (c *Config) Domains() []*Domain {
	return slices.SortedFunc(slices.Values(c.order), func(a, b *Domain) int {
		return strings.Compare(a.Name, b.Name)
	})
}

// Domain is a namespace of rules.
type Domain struct {
	Name string

	root siblings

	// requestSpec is the defaults for limits that requests bring along, and
	// requestLimits is false if those are off.
	requestSpec   limit.Spec
	requestLimits bool
}

// Match finds the rule for the entries of one request descriptor. It is nil if
// nothing matches, or if what matches has no limit in force: none at all, or only
// some with enabled: false.
//
// Each entry must meet a descriptor, and the last one the rule's own: nothing
// falls back from a branch once taken.
func (d *Domain) Match(entries []*ratelimitv3.RateLimitDescriptor_Entry) *Rule {
	t := &d.root
	for i, e := range entries {
		n := t.find(e.GetKey(), e.GetValue())
		if n == nil {
			return nil
		}
		if i == len(entries)-1 {
			return n.rule
		}
		if t = n.children; t == nil {
			return nil
		}
	}
	return nil
}

// Rule is what a request descriptor is held to. It is immutable once in force.
type Rule struct {
	// Path is the way to the rule in its file: `shop > service=checkout > path`.
	Path string

	// Limits are those in force, in file order: at least one from Match.
	Limits []*RateLimit

	ShadowMode, QuotaMode bool

	// Metadata is never to be changed.
	Metadata *structpb.Struct

	// sharedPatterns has the pattern that stands for an entry's value in the counter's
	// name, by place of the entry; empty for the value itself. Usually it is nil.
	sharedPatterns []string
}

// RateLimit is one limit of a rule. It is immutable once in force.
type RateLimit struct {
	*limit.Limit // nil if Unlimited
	Unlimited    bool

	// Name is what the limit is called in responses and in Replaces.
	Name string

	// Replaces names the limits that don't count in a request in which this one
	// is matched.
	Replaces []string

	// Response is the current_limit of responses, shared by all of them and never
	// to be changed; nil if Unlimited.
	Response *rlsv3.RateLimitResponse_RateLimit
}

// Store holds the Config in force. Its zero value holds none.
type Store struct{ config atomic.Pointer[Config] }

// Load returns the Config in force, nil before the first Set.
func (s *Store) Load() *Config { return s.config.Load() }

// Set puts c in force.
func (s *Store) Set(c *Config) { s.config.Store(c) }

package descriptors

import (
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
)

// node is a descriptor of a limits file, or one that was made for one value that a
// descriptor of a file matches: when an override is for tenant=acme alone. It needn't
// have copies of what is below tenant, and borrows that; an override for
// tenant=acme > path gives it its own.
type node struct {
	domain *Domain
	parent *node
	file   string
	line   int
	nth    int // place in its list, from 1; 0 stands for the domain itself

	key, value         string
	keyWild, valueWild bool

	shadowMode, quotaMode, detailedMetric, valueToMetric, share bool

	// borrows tells that its children are another descriptor's, which alone changes
	// and shows them.
	borrows bool

	// of is the sibling that n was made of for one value, copies those made of n.
	of     *node
	copies []*node

	metadata *structpb.Struct
	limits   []*stated
	rule     *Rule // nil if no limit is in force
	children *tier // nil if none
}

// path is the way to n: `shop > service=checkout > path`.
func (n *node) path() string {
	if n == nil {
		return ""
	}
	var parts []string
	for at := n; at.nth > 0; at = at.parent {
		parts = append(parts, at.label())
	}
	if n.domain != nil && n.domain.Name != "" {
		parts = append(parts, printable(n.domain.Name))
	}
	slices.Reverse(parts)
	return strings.Join(parts, " > ")
}

func (n *node) label() string {
	switch {
	case n.key == "":
		return "descriptor " + strconv.Itoa(n.nth)
	case n.value == "":
		return printable(n.key)
	}
	return printable(n.key + "=" + n.value)
}

// composite is key and value as envoyproxy/ratelimit writes them.
func (n *node) composite() string {
	if n.value == "" {
		return n.key
	}
	return n.key + "_" + n.value
}

// pattern is what stands for the value of an entry that met wildcard n.
func (n *node) pattern() string {
	if n.value == "" {
		return "*"
	}
	return n.value
}

// trail is the descriptors from the root to n.
func (n *node) trail() []*node {
	var ns []*node
	for ; n.nth > 0; n = n.parent {
		ns = append(ns, n)
	}
	slices.Reverse(ns)
	return ns
}

// inForce is those of limits that are on.
func inForce(limits []*stated) []*RateLimit {
	var on []*RateLimit
	for _, l := range limits {
		if l.enabled {
			on = append(on, l.RateLimit)
		}
	}
	return on
}

// compileRule makes n.rule of what n's fields say.
func (n *node) compileRule() {
	n.rule = nil
	r := &Rule{
		Limits:         inForce(n.limits),
		ShadowMode:     n.shadowMode,
		QuotaMode:      n.quotaMode,
		DetailedMetric: n.detailedMetric,
		ValueToMetric:  n.valueToMetric,
		Metadata:       n.metadata,
	}
	if len(r.Limits) == 0 || n.key == "" {
		return
	}
	r.Path = n.path()
	r.trail = n.trail()
	key := []byte(n.domain.Name)
	for _, at := range r.trail {
		key = append(append(key, '.'), at.composite()...)
		r.shares = r.shares || at.share
	}
	r.MetricKey = string(key)
	n.rule = r
}

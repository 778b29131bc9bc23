package service

import (
	"sync"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/limit"
)

// The most memory that a call takes back to the pool, so that one giant request
// doesn't keep its memory for ever.
const (
	maxKeptKeys = 64 << 10 // bytes
	maxKeptHits = 1 << 10
)

// call is the scratch space of one request.
type call struct {
	rules []*descriptors.Rule // by descriptor; nil where nothing limits

	// replaced names the limits that don't count, as another one of the request
	// replaces them. All of these do: unlimited ones, and those that are
	// themselves replaced.
	replaced map[string]bool

	// The hits of descriptor i are those with owner i, in the order of its
	// rule's limits; counted[j] is the limit of hits[j].
	hits    []backend.Hit
	results []backend.Result
	owner   []int
	counted []*descriptors.RateLimit

	keys    []byte // the hits' keys
	keyEnds []int  // by hit
}

var calls = sync.Pool{New: func() any { return &call{replaced: map[string]bool{}} }}

func newCall() *call { return calls.Get().(*call) }

func (c *call) release() {
	if cap(c.keys) > maxKeptKeys || cap(c.hits) > maxKeptHits || cap(c.rules) > maxKeptHits {
		return
	}
	// What the pool keeps must not keep limits of the past alive.
	clear(c.rules)
	clear(c.replaced)
	clear(c.hits)
	clear(c.counted)
	c.rules, c.hits, c.results, c.owner, c.counted = c.rules[:0], c.hits[:0], c.results[:0], c.owner[:0], c.counted[:0]
	c.keys, c.keyEnds = c.keys[:0], c.keyEnds[:0]
	calls.Put(c)
}

// match finds the rule of each descriptor of req and makes the hits to take.
func (c *call) match(limits *descriptors.Config, req *rlsv3.RateLimitRequest) error {
	domain := limits.Domain(req.Domain)
	for i, d := range req.Descriptors {
		var rule *descriptors.Rule
		switch {
		case domain == nil:
		case d.GetLimit() != nil:
			var err error
			if rule, err = domain.OwnLimit(d.Limit); err != nil {
				return status.Errorf(codes.InvalidArgument, "descriptors[%d]: %v", i, err)
			}
		default:
			rule = domain.Match(d.GetEntries())
		}
		c.rules = append(c.rules, rule)
		if rule != nil {
			for _, l := range rule.Limits {
				for _, name := range l.Replaces {
					c.replaced[name] = true
				}
			}
		}
	}
	for i, rule := range c.rules {
		if rule == nil {
			continue
		}
		d := req.Descriptors[i]
		start := -1 // where the key of this descriptor starts
		for _, l := range rule.Limits {
			if l.Unlimited || c.replaced[l.Name] {
				continue
			}
			if start < 0 {
				start = len(c.keys)
				c.keys = rule.AppendKey(c.keys, req.Domain, d.GetEntries())
			}
			c.hits = append(c.hits, backend.Hit{Limit: l.Limit, N: hitsOf(req, d), Shadow: rule.ShadowMode})
			c.keyEnds = append(c.keyEnds, len(c.keys))
			c.owner = append(c.owner, i)
			c.counted = append(c.counted, l)
		}
	}
	// Only now do the keys stay where they are.
	start := 0
	for j, end := range c.keyEnds {
		if j > 0 && c.owner[j] != c.owner[j-1] {
			start = c.keyEnds[j-1]
		}
		c.hits[j].Key = c.keys[start:end:end]
	}
	if n := len(c.hits); n <= cap(c.results) {
		c.results = c.results[:n]
		clear(c.results)
	} else {
		c.results = make([]backend.Result, n)
	}
	return nil
}

// hitsOf is how many hits d charges: its own hits_addend, where 0 peeks, else
// the request's, where 0 means 1; given back if d says so.
func hitsOf(req *rlsv3.RateLimitRequest, d *ratelimitv3.RateLimitDescriptor) int64 {
	n := max(int64(req.HitsAddend), 1)
	if own := d.GetHitsAddend(); own != nil {
		n = int64(min(own.Value, limit.MaxHits))
	}
	if d.GetIsNegativeHits() {
		return -n
	}
	return n
}

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

// Bounds of the memory of a pooled call. Larger calls don't return to the pool.
const (
	maxPooledKeyBytes = 64 << 10
	maxPooledHits     = 1 << 10
)

// call is the memory of one request.
type call struct {
	rules []*descriptors.Rule // by descriptor; nil if no rule matches

	// replacedNames holds the names of limits that another matched limit replaces. Such
	// limits are not counted. A limit replaces others even if it is unlimited or itself replaced.
	replacedNames map[string]bool

	// The slices below have one element for each hit. Hits of one descriptor are
	// neighbours, in the order of the limits of its rule.
	hits        []backend.Hit
	results     []backend.Result
	descriptors []int // index of the hit's descriptor
	limits      []*descriptors.RateLimit
	keyEnds     []int // end of the hit's key in keys

	keys []byte // memory of all keys
}

var calls = sync.Pool{New: func() any { return &call{replacedNames: map[string]bool{}} }}

func newCall() *call { return calls.Get().(*call) }

func (c *call) release() {
	if cap(c.keys) > maxPooledKeyBytes || cap(c.hits) > maxPooledHits || cap(c.rules) > maxPooledHits {
		return
	}
	// Pooled memory must not keep old limits alive.
	clear(c.rules)
	clear(c.replacedNames)
	clear(c.hits)
	clear(c.limits)
	c.rules, c.hits, c.results, c.limits = c.rules[:0], c.hits[:0], c.results[:0], c.limits[:0]
	c.descriptors, c.keyEnds, c.keys = c.descriptors[:0], c.keyEnds[:0], c.keys[:0]
	calls.Put(c)
}

// match finds the rule of each descriptor of req and prepares the hits.
func (c *call) match(config *descriptors.Config, req *rlsv3.RateLimitRequest) error {
	domain := config.Domain(req.Domain)
	for i, d := range req.Descriptors {
		var rule *descriptors.Rule
		switch {
		case domain == nil:
		case d.GetLimit() != nil:
			var err error
			if rule, err = domain.RequestOverride(d.Limit); err != nil {
				return status.Errorf(codes.InvalidArgument, "descriptors[%d]: %v", i, err)
			}
		default:
			rule = domain.Match(d.GetEntries())
		}
		c.rules = append(c.rules, rule)
		if rule != nil {
			for _, l := range rule.Limits {
				for _, name := range l.Replaces {
					c.replacedNames[name] = true
				}
			}
		}
	}
	// All replaced names are known now, so the hits can be added.
	for i, rule := range c.rules {
		if rule == nil {
			continue
		}
		d := req.Descriptors[i]
		hasKey := false
		for _, l := range rule.Limits {
			if l.Unlimited || len(c.replacedNames) > 0 && c.replacedNames[l.Name] {
				continue
			}
			if !hasKey {
				hasKey = true
				c.keys = rule.AppendKey(c.keys, req.Domain, d.GetEntries())
			}
			c.hits = append(c.hits, backend.Hit{Limit: l.Limit, N: hitCount(req, d), Shadow: rule.ShadowMode})
			c.keyEnds = append(c.keyEnds, len(c.keys))
			c.descriptors = append(c.descriptors, i)
			c.limits = append(c.limits, l)
		}
	}
	// c.keys doesn't move any more, so hits can point into it.
	keyStart := 0
	for j, end := range c.keyEnds {
		if j > 0 && c.descriptors[j] != c.descriptors[j-1] {
			keyStart = c.keyEnds[j-1]
		}
		c.hits[j].Key = c.keys[keyStart:end:end]
	}
	if n := len(c.hits); n <= cap(c.results) {
		c.results = c.results[:n]
		clear(c.results)
	} else {
		c.results = make([]backend.Result, n)
	}
	return nil
}

// observe reports all decisions to o.
func (c *call) observe(o Observer) {
	for j := range c.results {
		if c.results[j].Err == nil {
			o.Decided(c.rules[c.descriptors[j]], c.limits[j], c.hits[j].N, c.results[j])
		}
	}
}

// firstError returns the first error of the results, nil if there is none.
func (c *call) firstError() error {
	for j := range c.results {
		if err := c.results[j].Err; err != nil {
			return err
		}
	}
	return nil
}

// hitCount returns the number of hits that d charges. If d has a hits_addend, it is the
// number, and 0 is a peek. Otherwise the hits_addend of req is the number, and 0 means 1.
// For a refund the result is negative.
func hitCount(req *rlsv3.RateLimitRequest, d *ratelimitv3.RateLimitDescriptor) int64 {
	n := max(int64(req.HitsAddend), 1)
	if addend := d.GetHitsAddend(); addend != nil {
		n = int64(min(addend.Value, limit.MaxHits))
	}
	if d.GetIsNegativeHits() {
		return -n
	}
	return n
}

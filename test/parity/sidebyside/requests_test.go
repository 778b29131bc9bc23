//go:build parity

package sidebyside

import (
	"math/rand/v2"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// generator makes random requests that mostly match rules of its domains.
type generator struct {
	*rand.Rand
	domains   []*domain
	units     []string // of limits in requests
	hasLimits bool     // some requests have limits of their own
}

func pick[T any](g *generator, list ...T) T { return list[g.IntN(len(list))] }

// entryValues are values of entries for rules without a value. None of them has an underscore, because the
// incumbent joins keys and values with underscores.
var entryValues = []string{"alice", "bob", "carol", "", "a.b", "10.1.2.3", "host:80|x", "sp ace", "ünïcode", "a/b?c=d&e"}

// request returns a request with one to four descriptors. One of 50 requests is invalid, and one of 50 has a domain
// without limits.
func (g *generator) request() *rlsv3.RateLimitRequest {
	domain := pick(g, g.domains...)
	req := &rlsv3.RateLimitRequest{Domain: domain.Domain, HitsAddend: uint32(max(g.IntN(6)-2, 0))}
	for range 1 + g.IntN(4) {
		req.Descriptors = append(req.Descriptors, g.descriptor(domain.Rules))
	}
	switch g.IntN(50) {
	case 0:
		req.Domain = "nowhere"
	case 1:
		if req.Domain = ""; g.IntN(2) == 0 {
			req.Domain, req.Descriptors = domain.Domain, nil
		}
	}
	return req
}

// routeRequest returns a request with a descriptor for each limit below one of the rules at the root of d, as Envoy
// Gateway lets Envoy send it for a route. At most n limits are in it.
func (g *generator) routeRequest(d *domain, n int) *rlsv3.RateLimitRequest {
	req := &rlsv3.RateLimitRequest{Domain: d.Domain}
	var add func(rules []*rule, path []*ratelimitv3.RateLimitDescriptor_Entry)
	add = func(rules []*rule, path []*ratelimitv3.RateLimitDescriptor_Entry) {
		for _, rule := range rules {
			entries := append(path[:len(path):len(path)], &ratelimitv3.RateLimitDescriptor_Entry{Key: rule.Key, Value: g.valueFor(rule)})
			if rule.Limit != nil && len(req.GetDescriptors()) < n {
				req.Descriptors = append(req.Descriptors, &ratelimitv3.RateLimitDescriptor{Entries: entries})
			}
			add(rule.Rules, entries)
		}
	}
	add([]*rule{pick(g, d.Rules...)}, nil)
	return req
}

// descriptor returns a descriptor that mostly matches rules or some of their children.
func (g *generator) descriptor(rules []*rule) *ratelimitv3.RateLimitDescriptor {
	descriptor := &ratelimitv3.RateLimitDescriptor{}
	var lastRule *rule
	isShared := false
	for len(rules) > 0 {
		lastRule = pick(g, rules...)
		isShared = isShared || lastRule.ShareThreshold
		descriptor.Entries = append(descriptor.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: lastRule.Key, Value: g.valueFor(lastRule)})
		if lastRule.Limit != nil && g.IntN(3) == 0 || g.IntN(50) == 0 {
			break
		}
		rules = lastRule.Rules
	}
	entry := pick(g, descriptor.Entries...)
	switch g.IntN(40) {
	case 0:
		entry.Key = pick(g, "other", entry.Key+"x", "")
	case 1:
		entry.Value = pick(g, entryValues...)
	case 2:
		descriptor.Entries = descriptor.Entries[:len(descriptor.Entries)-1]
	case 3:
		descriptor.Entries = append(descriptor.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: pick(g, "other", entry.Key), Value: pick(g, entryValues...)})
	}
	if g.IntN(4) == 0 {
		descriptor.HitsAddend = wrapperspb.UInt64(uint64(g.IntN(6)))
	}
	if g.hasLimits && !isShared && g.IntN(12) == 0 {
		descriptor.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(g.IntN(8)), Unit: g.unit()}
	}
	return descriptor
}

// unit returns the unit of a limit in a request.
func (g *generator) unit() typev3.RateLimitUnit {
	name := strings.ToUpper(pick(g, g.units...))
	if name == "WEEK" {
		return 7 // has no name in the enumeration
	}
	return typev3.RateLimitUnit(typev3.RateLimitUnit_value[name])
}

// valueFor returns a value that r matches.
func (g *generator) valueFor(r *rule) string {
	switch {
	case r.Value == "":
		return pick(g, entryValues...)
	case strings.Contains(r.Value, "*") && (r.ShareThreshold || g.IntN(20) > 0): // otherwise the text of the pattern
		return strings.ReplaceAll(r.Value, "*", pick(g, "", "x", "y", "long text"))
	}
	return r.Value
}

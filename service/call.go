package service

import (
	"context"
	"slices"
	"sync"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service/callers"
)

// The bounds on a call in the pool. Larger calls don't return to the pool.
const (
	maxPooledKeyBytes = 64 << 10
	maxPooledHits     = 1 << 10
)

// Call is a call of the service and its answer. An Observer must not keep a Call, because later calls reuse its memory.
type Call struct {
	Request *rlsv3.RateLimitRequest
	Start   time.Time // the time of the decisions

	// HasDomain reports whether a limits file in force has the domain of the request.
	HasDomain bool

	// Rules has an element for each descriptor: the rule that matches, or nil. A rejected request can have fewer rules.
	Rules []*descriptors.Rule

	// Response is the answer, or nil if Err is set.
	Response *rlsv3.RateLimitResponse
	Err      error

	// GlobalShadow reports that the shadow mode of the whole service has replaced the code OVER_LIMIT by OK.
	GlobalShadow bool

	// IsAcquire reports that the caller waits for permits, so the call charges nothing if it is denied.
	IsAcquire bool

	callerHeader string // the gRPC metadata key in which the caller sends its name

	config *descriptors.Config // the limits in force
	budget descriptors.Budget  // the steps that the conditions of this call may still take

	// replacedNames has the names in the field replaces of all matched limits. A named limit gets no hits, but still
	// replaces other limits.
	replacedNames map[string]bool

	// The slices below have one element for each hit. Each counted limit has a hit. The hits of a descriptor are
	// neighbours, in the order of the limits of its rule. In this package, i is the index of a descriptor, and j the index
	// of a hit.
	hits           []backend.Hit
	results        []backend.Result
	hitDescriptors []int // the index of the descriptor of the hit
	limits         []*descriptors.RateLimit

	keys []byte // memory of the keys of hits

	exceedsMaxHits  bool // a hit exceeds the max_hits of its rule
	isPeek          bool // the Limiter gets only peeks, which charge nothing, because a hit above max_hits denies the call
	hasHolds        bool // the limit of a hit has holds
	wantsWaitHeader bool // the caller wants the header of sendWait
	isGroupDenied   bool // no all-or-none hit was charged, because a hit has denied the group
	keepsCharges    bool // the Service does not refund the admitted hits
}

// IsGivenUp reports whether the call failed because its caller canceled it, or because its deadline passed.
func (c *Call) IsGivenUp() bool {
	code := status.Code(c.Err)
	return code == codes.Canceled || code == codes.DeadlineExceeded
}

// IsRefused reports whether the call failed because its caller had sent too many calls.
func (c *Call) IsRefused() bool { return status.Code(c.Err) == codes.ResourceExhausted }

// AppendCaller appends the address of the caller, the name in its client certificate and the name that it sends, as
// callers.AppendCaller does. ctx is the context of the call.
func (c *Call) AppendCaller(b []byte, ctx context.Context) []byte {
	return callers.AppendCaller(b, ctx, c.callerHeader)
}

var calls = sync.Pool{New: func() any { return &Call{replacedNames: map[string]bool{}} }}

func (c *Call) returnToPool() {
	if cap(c.keys) > maxPooledKeyBytes || cap(c.hits) > maxPooledHits || cap(c.Rules) > maxPooledHits {
		return
	}
	// Pooled memory must not keep old limits alive.
	clear(c.Rules)
	clear(c.replacedNames)
	clear(c.hits)
	clear(c.limits)
	*c = Call{
		Rules: c.Rules[:0], replacedNames: c.replacedNames, hits: c.hits[:0], results: c.results[:0],
		hitDescriptors: c.hitDescriptors[:0], limits: c.limits[:0], keys: c.keys[:0],
	}
	calls.Put(c)
}

// hitsEnd returns the index after the last hit of descriptor i. firstHit is the index of the first hit of descriptor i. If
// descriptor i has no hits, firstHit belongs to a later descriptor, and hitsEnd returns firstHit.
func (c *Call) hitsEnd(i, firstHit int) int {
	end := firstHit
	for end < len(c.hits) && c.hitDescriptors[end] == i {
		end++
	}
	return end
}

func (c *Call) match(config *descriptors.Config, req *rlsv3.RateLimitRequest, o *Options) error {
	domain := config.Domain(req.Domain)
	c.HasDomain = domain != nil
	for i, d := range req.Descriptors {
		var rule *descriptors.Rule
		switch {
		case domain == nil:
		case d.GetLimit() != nil:
			var err error
			if rule, err = domain.RuleOfRequestLimit(d.Limit); err != nil {
				return status.Errorf(codes.InvalidArgument, "descriptors[%d]: %v", i, err)
			}
		default:
			rule = domain.MatchWithBudget(&c.budget, d.GetEntries())
		}
		c.Rules = append(c.Rules, rule)
		if rule != nil {
			for _, l := range rule.Limits {
				for _, name := range l.Replaces {
					c.replacedNames[name] = true
				}
			}
		}
	}
	// The first loop has found all replaced names, so the second loop can add the hits.
	isShadow := config.IsShadow(o.ShadowMode)
	for i, rule := range c.Rules {
		if rule == nil {
			continue
		}
		d := req.Descriptors[i]
		var key []byte
		for _, l := range rule.Limits {
			if l.Unlimited || len(c.replacedNames) > 0 && c.replacedNames[l.Name] {
				continue
			}
			if key == nil {
				start := len(c.keys)
				c.keys = rule.AppendKey(c.keys, req.Domain, d.GetEntries()) // earlier keys stay valid if c.keys grows
				key = c.keys[start:len(c.keys):len(c.keys)]
			}
			n := hitCount(req, d)
			if rule.HasHolds {
				n = descriptors.AdjustHitsForHolds(l.Limit, n)
				c.hasHolds = c.hasHolds || l.Algorithm.HasHolds()
			}
			c.exceedsMaxHits = c.exceedsMaxHits || rule.ExceedsMaxHits(n)
			h := backend.Hit{Key: key, Limit: l.Limit, Rule: rule.Path, N: n, Shadow: rule.IsShadowed(key)}
			h.AllOrNone = o.AllOrNone && !h.Shadow
			h.DenialDeniesCall = !h.Shadow && !isShadow && !isInQuotaMode(rule, true, o.QuotaMode)
			c.hits = append(c.hits, h)
			c.hitDescriptors = append(c.hitDescriptors, i)
			c.limits = append(c.limits, l)
		}
	}
	c.results = slices.Grow(c.results, len(c.hits))[:len(c.hits)]
	clear(c.results)
	return nil
}

// checkRefunds returns an error if the request has a refund that the rule does not allow. If rejectsAll is true, it rejects
// all refunds.
func (c *Call) checkRefunds(rejectsAll bool) error {
	for j := range c.hits {
		i := c.hitDescriptors[j]
		switch rule := c.Rules[i]; {
		case !c.Request.Descriptors[i].GetIsNegativeHits():
		case rejectsAll:
			return status.Errorf(codes.PermissionDenied, "descriptors[%d]: refunds (is_negative_hits) are turned off (NEGATIVE_HITS)", i)
		case rule.NoRefunds:
			return status.Errorf(codes.PermissionDenied, "descriptors[%d]: rule %s has refunds: false", i, rule.Path)
		}
	}
	return nil
}

// RequestedHits returns the hits that descriptor i charges: 0 for a peek, negative for a refund.
func (c *Call) RequestedHits(i int) int64 { return hitCount(c.Request, c.Request.Descriptors[i]) }

// hitCount returns the hits that d charges: its hits_addend, or else the hits_addend of req, where 0 means 1.
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

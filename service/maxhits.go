package service

import (
	"context"

	"github.com/seed-81f232ab/rls/limit"
)

// take lets the Limiter decide the hits of c. If a hit exceeds the max_hits of its rule, the hit is
// denied. If this denies the call, the whole call charges nothing. Otherwise only the hit is not
// charged.
func (s *Service) take(ctx context.Context, c *Call) {
	if !c.exceedsMaxHits {
		s.options.Limiter.Take(ctx, c.Start, c.hits, c.results)
		return
	}
	c.isPeek = c.isDeniedByMaxHits(s.options.QuotaMode)
	requested := make([]int64, len(c.hits))
	for j := range c.hits {
		requested[j] = c.hits[j].N
		if c.isPeek || c.hitExceedsMaxHits(j) {
			c.hits[j].N = 0
		}
	}
	s.options.Limiter.Take(ctx, c.Start, c.hits, c.results)
	for j := range c.hits {
		h, r := &c.hits[j], &c.results[j]
		if h.N == requested[j] {
			continue
		}
		h.N = requested[j]
		r.Result = h.Limit.FromPeek(r.Result, h.N)
		if c.hitExceedsMaxHits(j) {
			r.Allowed, r.RetryAfter = false, limit.Never
		}
	}
}

// hitExceedsMaxHits reports whether hit j exceeds the max_hits of its rule.
func (c *Call) hitExceedsMaxHits(j int) bool {
	return c.Rules[c.hitDescriptors[j]].IsTooLarge(c.hits[j].N)
}

// isDeniedByMaxHits reports whether the max_hits of the rules deny c, whatever their limits have
// left. A rule in shadow mode denies no call. Rules in quota mode deny a call together only.
func (c *Call) isDeniedByMaxHits(quotaMode bool) bool {
	hit, quotas, quotasTooLarge := 0, 0, 0
	for i, rule := range c.Rules {
		firstHit, hitExceedsMaxHits := hit, false
		for ; hit < len(c.hits) && c.hitDescriptors[hit] == i; hit++ {
			hitExceedsMaxHits = hitExceedsMaxHits || c.hitExceedsMaxHits(hit) && !c.hits[hit].Shadow
		}
		switch isQuota := isInQuotaMode(rule, hit > firstHit, quotaMode); {
		case isQuota && hitExceedsMaxHits:
			quotas++
			quotasTooLarge++
		case isQuota:
			quotas++
		case hitExceedsMaxHits:
			return true
		}
	}
	return c.coversAllQuotas(quotasTooLarge, quotas)
}

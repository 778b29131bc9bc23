package service

import (
	"context"

	"github.com/seed-81f232ab/rls/limit"
)

// take lets the Limiter decide the hits of c, and denies hits above the max_hits of their rule. If this denies the
// call, the call charges nothing. Otherwise only these hits are not charged.
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

func (c *Call) hitExceedsMaxHits(j int) bool {
	return c.Rules[c.hitDescriptors[j]].IsTooLarge(c.hits[j].N)
}

// isDeniedByMaxHits reports whether the max_hits of the rules deny c, whatever their limits have left.
func (c *Call) isDeniedByMaxHits(quotaMode bool) bool {
	return c.isDeniedBy(quotaMode, func(_, from, to int) bool {
		for j := from; j < to; j++ {
			if c.hitExceedsMaxHits(j) && !c.hits[j].Shadow {
				return true
			}
		}
		return false
	})
}

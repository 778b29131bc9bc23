package service

import (
	"context"

	"github.com/seed-81f232ab/rls/limit"
)

// take lets the Limiter decide the hits of c. If a hit exceeds the max_hits of its rule, the hit is
// denied and the whole call charges nothing. A rule in shadow mode denies no call, so then only
// its own hits are not charged.
func (s *Service) take(ctx context.Context, c *Call) {
	if !c.exceedsMaxHits {
		s.o.Limiter.Take(ctx, c.Start, c.hits, c.results)
		return
	}
	deniesCall := false
	for j := range c.hits {
		deniesCall = deniesCall || c.isTooLarge(j) && !c.hits[j].Shadow
	}
	requested := make([]int64, len(c.hits))
	for j := range c.hits {
		requested[j] = c.hits[j].N
		if deniesCall || c.isTooLarge(j) {
			c.hits[j].N = 0
		}
	}
	s.o.Limiter.Take(ctx, c.Start, c.hits, c.results)
	for j := range c.hits {
		h, r := &c.hits[j], &c.results[j]
		if h.N == requested[j] {
			continue
		}
		h.N = requested[j]
		r.Result = h.Limit.FromPeek(r.Result, h.N)
		if c.isTooLarge(j) {
			r.Allowed, r.RetryAfter = false, limit.Never
		}
	}
}

// isTooLarge reports whether hit j exceeds the max_hits of its rule.
func (c *Call) isTooLarge(j int) bool { return c.Rules[c.descriptors[j]].IsTooLarge(c.hits[j].N) }

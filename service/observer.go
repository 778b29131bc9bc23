package service

import (
	"context"
	"slices"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/descriptors"
)

// Observer gets the answered calls of a Service. Several goroutines can call CallAnswered at the same time.
type Observer interface {
	// CallAnswered gets each call just before the answer, even a rejected or failed call. It must return at once, must not
	// allocate, and must not change or keep the Call.
	CallAnswered(ctx context.Context, c *Call)
}

// Decision is the decision of one limit about one descriptor. It is valid as long as the Call.
type Decision struct {
	Descriptor int // the index of the descriptor in the request
	Rule       *descriptors.Rule
	Limit      *descriptors.RateLimit // the limit of Rule; it is never unlimited

	// Hit is the charge on the counter of Limit.
	*backend.Hit

	// ChargesDenied reports that the hits are charged even if the limit denies them. It is false for hits in an all-or-none
	// group and for hits above max_hits.
	ChargesDenied bool

	// Result is the result of the hits. If Result has an Err, the Limiter could not decide the hits.
	Result backend.Result
}

// DecisionCount returns the number of decisions. Each counted limit has a decision.
func (c *Call) DecisionCount() int { return len(c.hits) }

// Decision returns the i-th decision, in the order of the descriptors and their limits.
func (c *Call) Decision(i int) Decision {
	d, h := c.hitDescriptors[i], &c.hits[i]
	isPeek := c.isPeek || c.exceedsMaxHits && c.hitExceedsMaxHits(i)
	return Decision{
		Descriptor: d, Rule: c.Rules[d], Limit: c.limits[i], Hit: h,
		ChargesDenied: h.Limit.ChargeDenied && !h.IsInGroup() && !isPeek, Result: c.results[i],
	}
}

// DescriptorDecision returns the decision in the status of descriptor i. ok is false if no limit was counted.
func (c *Call) DescriptorDecision(i int) (d Decision, ok bool) {
	start, _ := slices.BinarySearch(c.hitDescriptors, i)
	end := c.hitsEnd(i, start)
	if start == end {
		return Decision{}, false
	}
	return c.Decision(c.mostRestrictiveHit(start, end)), true
}

package service

import (
	"context"
	"math"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/limit"
)

// overallCode returns the overall code of a request with these statuses. headerStatus is the status that response headers
// describe: the last status of a descriptor that is over its limit and not in quota mode. If there is none, headerStatus
// is the first status with the least LimitRemaining. If no limit was counted, headerStatus is nil.
func (c *Call) overallCode(statuses []*rlsv3.RateLimitResponse_DescriptorStatus, quotaMode bool) (
	code rlsv3.RateLimitResponse_Code, headerStatus *rlsv3.RateLimitResponse_DescriptorStatus,
) {
	isAnyOverLimit, minRemaining := false, uint32(math.MaxUint32)
	for i, st := range statuses {
		isOverLimit := st.Code == rlsv3.RateLimitResponse_OVER_LIMIT
		isAnyOverLimit = isAnyOverLimit || isOverLimit
		switch {
		case st.CurrentLimit == nil:
		case isOverLimit && !isInQuotaMode(c.Rules[i], true, quotaMode):
			headerStatus, minRemaining = st, 0
		case st.LimitRemaining < minRemaining:
			headerStatus, minRemaining = st, st.LimitRemaining
		}
	}
	isDescriptorOverLimit := func(i, _, _ int) bool { return statuses[i].Code == rlsv3.RateLimitResponse_OVER_LIMIT }
	if isAnyOverLimit && c.isCallDenied(quotaMode, isDescriptorOverLimit) {
		return rlsv3.RateLimitResponse_OVER_LIMIT, headerStatus
	}
	return rlsv3.RateLimitResponse_OK, headerStatus
}

// isCallDenied reports whether c is denied: if a descriptor that is not in quota mode is over its limit, or if all
// descriptors in quota mode are over their limits. isDescriptorOverLimit reports whether descriptor i is over its limit. The
// hits of this descriptor have the indexes from start to end-1.
func (c *Call) isCallDenied(quotaMode bool, isDescriptorOverLimit func(i, start, end int) bool) bool {
	hitIndex, quotaModeCount, deniedQuotaCount := 0, 0, 0
	for i, rule := range c.Rules {
		start := hitIndex
		hitIndex = c.hitsEnd(i, hitIndex)
		switch hasQuotaMode := isInQuotaMode(rule, hitIndex > start, quotaMode); {
		case hasQuotaMode && isDescriptorOverLimit(i, start, hitIndex):
			quotaModeCount++
			deniedQuotaCount++
		case hasQuotaMode:
			quotaModeCount++
		case isDescriptorOverLimit(i, start, hitIndex):
			return true
		}
	}
	return c.isQuotaModeDenied(deniedQuotaCount, quotaModeCount)
}

// isInQuotaMode reports whether a descriptor with this rule is in quota mode. hasHit reports whether a limit of the rule
// gets a hit. hasHit is false if other limits replace all limits of the rule. Then quota_mode of the rule has no effect.
// quotaMode is QUOTA_MODE.
func isInQuotaMode(rule *descriptors.Rule, hasHit, quotaMode bool) bool {
	return quotaMode || rule != nil && rule.QuotaMode && (hasHit || rule.IsUnlimited())
}

// isQuotaModeDenied reports whether all descriptors in quota mode are denied. quotaModeCount is the number of descriptors in
// quota mode that have a rule, and deniedCount is the number of these descriptors that are over their limits.
func (c *Call) isQuotaModeDenied(deniedCount, quotaModeCount int) bool {
	if deniedCount == 0 || deniedCount < quotaModeCount {
		return false
	}
	domain := c.config.Domain(c.Request.Domain)
	for i, rule := range c.Rules {
		if rule == nil && domain != nil && domain.MatchesQuotaMode(&c.budget, c.Request.Descriptors[i].GetEntries()) {
			return false // the descriptor in quota mode has no limit in force, so it is not denied
		}
	}
	return true
}

// Headers has the names of the response headers for the limit, the remaining hits and the seconds until the reset.
type Headers struct {
	Limit, Remaining, Reset string
}

func (h *Headers) values(st *rlsv3.RateLimitResponse_DescriptorStatus) []*corev3.HeaderValue {
	reset := wholeSeconds(st.DurationUntilReset.AsDuration().Microseconds())
	return []*corev3.HeaderValue{
		{Key: h.Limit, Value: strconv.FormatUint(uint64(st.CurrentLimit.RequestsPerUnit), 10)},
		{Key: h.Remaining, Value: strconv.FormatUint(uint64(st.LimitRemaining), 10)},
		{Key: h.Reset, Value: strconv.FormatInt(reset, 10)},
	}
}

// take lets the Limiter decide and charge the hits of c. If the number of a hit exceeds the max_hits of its rule, take
// denies the hit and does not charge it. If this denies the call, the call charges nothing.
func (s *Service) take(ctx context.Context, c *Call) {
	if !c.exceedsMaxHits {
		s.options.Limiter.Take(ctx, c.Start, c.hits, c.results)
		return
	}
	c.isPeek = c.isDeniedByMaxHits(s.options.QuotaMode)
	requestedHits := make([]int64, len(c.hits))
	for j := range c.hits {
		requestedHits[j] = c.hits[j].N
		if c.isPeek || c.hitExceedsMaxHits(j) {
			c.hits[j].N = 0
		}
	}
	s.options.Limiter.Take(ctx, c.Start, c.hits, c.results)
	for j := range c.hits {
		h, r := &c.hits[j], &c.results[j]
		if h.N == requestedHits[j] {
			continue
		}
		h.N = requestedHits[j]
		r.Result = h.Limit.ResultFromPeek(r.Result, h.N)
		if c.hitExceedsMaxHits(j) {
			r.Allowed, r.RetryAfter = false, limit.Never
		}
	}
}

func (c *Call) hitExceedsMaxHits(j int) bool {
	return c.Rules[c.hitDescriptors[j]].ExceedsMaxHits(c.hits[j].N)
}

// isDeniedByMaxHits reports whether the max_hits of the rules are enough to deny c.
func (c *Call) isDeniedByMaxHits(quotaMode bool) bool {
	return c.isCallDenied(quotaMode, func(_, start, end int) bool {
		for j := start; j < end; j++ {
			if c.hitExceedsMaxHits(j) && !c.hits[j].Shadow {
				return true
			}
		}
		return false
	})
}

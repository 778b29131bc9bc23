package service

import (
	"math"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors"
)

// overallCode returns the overall code of a request with these statuses, which are in the
// order of c.Rules. The code is OVER_LIMIT if an ordinary descriptor is over its limit, or
// if every descriptor in quota mode is over its limit. See isInQuotaMode.
//
// overallCode also returns the status that response headers describe: the last ordinary
// descriptor over its limit, or else the first descriptor with the least remaining. The
// status is nil if no limit was counted.
func (c *Call) overallCode(statuses []*rlsv3.RateLimitResponse_DescriptorStatus, quotaMode bool) (
	code rlsv3.RateLimitResponse_Code, headerStatus *rlsv3.RateLimitResponse_DescriptorStatus,
) {
	code = rlsv3.RateLimitResponse_OK
	quotas, quotasOverLimit := 0, 0
	leastRemaining := uint32(math.MaxUint32)
	for i, st := range statuses {
		rule := c.Rules[i]
		isOver := st.Code == rlsv3.RateLimitResponse_OVER_LIMIT
		hasLimit := st.CurrentLimit != nil
		isQuota := isInQuotaMode(rule, hasLimit, quotaMode)
		if isQuota {
			quotas++
		}
		switch {
		case isOver && isQuota:
			quotasOverLimit++
		case isOver:
			code = rlsv3.RateLimitResponse_OVER_LIMIT
		}
		switch {
		case hasLimit && isOver && !isQuota:
			headerStatus, leastRemaining = st, 0
		case hasLimit && st.LimitRemaining < leastRemaining:
			headerStatus, leastRemaining = st, st.LimitRemaining
		}
	}
	if c.coversAllQuotas(quotasOverLimit, quotas) {
		code = rlsv3.RateLimitResponse_OVER_LIMIT
	}
	return code, headerStatus
}

// isInQuotaMode reports whether a descriptor with this rule is in quota mode. hasLimit reports whether a
// limit of the rule was counted. quotaMode puts all descriptors in quota mode. A descriptor without a
// counted limit is not over its limit. If other limits replace all limits of a descriptor, the quota_mode
// of its rule has no effect.
func isInQuotaMode(rule *descriptors.Rule, hasLimit, quotaMode bool) bool {
	return quotaMode || rule != nil && rule.QuotaMode && (hasLimit || rule.IsUnlimited())
}

// coversAllQuotas reports whether n descriptors in quota mode are all descriptors in quota mode. quotas is
// the number of descriptors in quota mode that have a rule.
func (c *Call) coversAllQuotas(n, quotas int) bool {
	if n == 0 || n < quotas {
		return false
	}
	domain := c.config.Domain(c.Request.Domain)
	for i, rule := range c.Rules {
		if rule == nil && domain != nil && domain.MatchesQuotaMode(&c.budget, c.Request.Descriptors[i].GetEntries()) {
			return false // no limit of the descriptor is in force
		}
	}
	return true
}

// Headers holds the names of the response headers for the limit, the remaining hits and
// the seconds until the reset. Their values are decimal numbers.
type Headers struct {
	Limit, Remaining, Reset string
}

func (h *Headers) values(st *rlsv3.RateLimitResponse_DescriptorStatus) []*corev3.HeaderValue {
	reset := st.DurationUntilReset.Seconds
	if st.DurationUntilReset.Nanos > 0 {
		reset++
	}
	return []*corev3.HeaderValue{
		{Key: h.Limit, Value: strconv.FormatUint(uint64(st.CurrentLimit.RequestsPerUnit), 10)},
		{Key: h.Remaining, Value: strconv.FormatUint(uint64(st.LimitRemaining), 10)},
		{Key: h.Reset, Value: strconv.FormatInt(reset, 10)},
	}
}

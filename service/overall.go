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
// if every descriptor in quota mode is over its limit. If quotaMode is true, all descriptors are
// in quota mode, even those without a rule. Unlimited descriptors never are.
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
		isQuota := inQuotaMode(rule, hasLimit, quotaMode)
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
	if quotas > 0 && quotasOverLimit == quotas {
		code = rlsv3.RateLimitResponse_OVER_LIMIT
	}
	return code, headerStatus
}

// inQuotaMode reports whether a descriptor with this rule is in quota mode. hasLimit reports whether a
// limit of the rule was counted. quotaMode puts all descriptors in quota mode. See overallCode.
func inQuotaMode(rule *descriptors.Rule, hasLimit, quotaMode bool) bool {
	return (quotaMode || hasLimit && rule.QuotaMode) && (rule == nil || !isUnlimited(rule))
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

package service

import (
	"math"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// verdict is what the statuses of one request come to.
type verdict struct {
	code rlsv3.RateLimitResponse_Code

	// tell is the status that response headers describe; nil if none counts.
	tell *rlsv3.RateLimitResponse_DescriptorStatus
}

// verdict sums up statuses, which are in the order of c.rules. The request is
// over its limit if an ordinary descriptor is, or if there are descriptors in
// quota mode and all of them are. quotaMode puts every descriptor in quota mode,
// also those that nothing matched, but not unlimited ones.
//
// Headers tell the last ordinary descriptor that is over, else the first with
// the least remaining.
func (c *call) verdict(statuses []*rlsv3.RateLimitResponse_DescriptorStatus, quotaMode bool) verdict {
	v := verdict{code: rlsv3.RateLimitResponse_OK}
	failed, quotas, quotasFailed := 0, 0, 0
	least := uint32(math.MaxUint32)
	for i, st := range statuses {
		over := st.Code == rlsv3.RateLimitResponse_OVER_LIMIT
		rule := c.rules[i]
		counted := st.CurrentLimit != nil
		quota := quotaMode || counted && rule.QuotaMode
		if rule != nil && unlimited(rule) {
			quota = false
		}
		switch {
		case quota:
			quotas++
			if over {
				quotasFailed++
			}
		case over:
			failed++
		}
		switch {
		case counted && over && !quota:
			v.tell, least = st, 0
		case counted && st.LimitRemaining < least:
			v.tell, least = st, st.LimitRemaining
		}
	}
	if failed > 0 || quotas > 0 && quotasFailed == quotas {
		v.code = rlsv3.RateLimitResponse_OVER_LIMIT
	}
	return v
}

// Headers names the response headers that tell the limit, what remains of it and
// the seconds until it resets. Their values are plain decimal numbers.
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

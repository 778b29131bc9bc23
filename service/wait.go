package service

import (
	"math"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed-81f232ab/rls/limit"
)

const neverWait = math.MaxInt64

// retryAfter returns the microseconds until the same call passes if nobody else sends hits, also with the hits that
// this call has charged. Limits with holds count only if withSlots is true, or if they never admit the call.
func (c *Call) retryAfter(quotaMode, withSlots bool) int64 {
	var longest int64
	quotas, shortestQuota := 0, int64(neverWait)
	hit := 0
	for i, rule := range c.Rules {
		firstHit, wait := hit, int64(0)
		for ; hit < len(c.hits) && c.hitDescriptors[hit] == i; hit++ {
			if w := c.wait(hit); w == neverWait || withSlots || !c.hits[hit].Limit.Algorithm.HasHolds() {
				wait = max(wait, w)
			}
		}
		if isInQuotaMode(rule, hit > firstHit, quotaMode) {
			quotas++
			shortestQuota = min(shortestQuota, wait)
		} else {
			longest = max(longest, wait)
		}
	}
	if c.coversAllQuotas(quotas, quotas) {
		longest = max(longest, shortestQuota)
	}
	return longest
}

// wait returns the microseconds until the limit of hit j admits the same hits, once more if this call has charged
// them. It returns 0 if the limit can't deny the call.
func (c *Call) wait(j int) int64 {
	h, r := &c.hits[j], &c.results[j]
	isCharged := c.keepsCharges && c.isCharged(j)
	if h.Shadow || r.Allowed && !isCharged {
		return 0
	}
	wait := h.Limit.NextAfter(h.N, r.Result)
	if wait == limit.Never {
		return neverWait
	}
	return wait
}

// raiseWaits raises the duration of each denied status to the time until all limits admit the hits.
func (c *Call) raiseWaits(statuses []*rlsv3.RateLimitResponse_DescriptorStatus) {
	for j := range c.hits {
		st := statuses[c.hitDescriptors[j]]
		if st.Code != rlsv3.RateLimitResponse_OVER_LIMIT {
			continue
		}
		w := c.wait(j)
		if w == neverWait {
			continue // setStatus has set the end of the window
		}
		w = roundWait(c.hits[j].Limit, w)
		if d := st.DurationUntilReset; w > d.Seconds*secondMicros+int64(d.Nanos)/1000 {
			setDuration(d, w)
		}
	}
}

package service

import (
	"math"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seed-81f232ab/rls/limit"
)

const secondMicros = 1_000_000

func (c *Call) newResponse() *rlsv3.RateLimitResponse {
	resp, statuses, durations := allocResponse(len(c.Rules))
	resp.OverallCode = rlsv3.RateLimitResponse_OK
	hitIndex := 0
	for i, rule := range c.Rules {
		status := &statuses[i]
		resp.Statuses[i] = status
		status.Code = rlsv3.RateLimitResponse_OK
		firstHit := hitIndex
		hitIndex = c.hitsEnd(i, hitIndex)
		switch {
		case firstHit < hitIndex:
			c.setStatus(status, &durations[i], c.mostRestrictiveHit(firstHit, hitIndex))
		case rule != nil && rule.IsUnlimited():
			status.LimitRemaining = math.MaxUint32
		}
	}
	return resp
}

// mostRestrictiveHit returns the index of the hit that the status of the descriptor describes: the first denied hit with
// the longest wait, or else the first hit with the fewest remaining hits. The hits have the indexes from start to end-1.
func (c *Call) mostRestrictiveHit(start, end int) int {
	bestIndex := start
	for j := start + 1; j < end; j++ {
		r, bestResult := c.results[j].Result, c.results[bestIndex].Result
		switch {
		case r.Allowed && (!bestResult.Allowed || r.Remaining >= bestResult.Remaining):
		case !r.Allowed && !bestResult.Allowed && denialRank(c.hits[j].Limit, r) <= denialRank(c.hits[bestIndex].Limit, bestResult):
		default:
			bestIndex = j
		}
	}
	return bestIndex
}

// denialRank returns the rank of a denial. A denial with a longer wait has a larger rank. Denials of hits that never pass
// have the largest ranks.
func denialRank(l *limit.Limit, r limit.Result) int64 {
	rank := l.DurationUntilReset(r)
	if r.RetryAfter == limit.Never {
		rank += limit.MaxPeriod * 4
	}
	return rank
}

func (c *Call) setStatus(status *rlsv3.RateLimitResponse_DescriptorStatus, duration *durationpb.Duration, j int) {
	l, r := c.hits[j].Limit, c.results[j].Result
	if !r.Allowed && !c.hits[j].Shadow {
		status.Code = rlsv3.RateLimitResponse_OVER_LIMIT
	}
	status.CurrentLimit = c.limits[j].Response
	status.LimitRemaining = uint32(min(max(r.Remaining, 0), math.MaxUint32))
	wait := roundWait(l, l.DurationUntilReset(r))
	setDuration(duration, wait)
	status.DurationUntilReset = duration
}

func setDuration(d *durationpb.Duration, micros int64) {
	d.Seconds, d.Nanos = micros/secondMicros, int32(micros%secondMicros*1000)
}

// roundWait rounds a wait in microseconds up to whole seconds, because Envoy drops the fraction in Retry-After and
// x-ratelimit-reset, and its clients would come back too early. A wait below a second is not rounded, because other clients read the fraction. If
// the windows of l start at whole seconds, roundWait rounds all waits, as envoyproxy/ratelimit does.
func roundWait(l *limit.Limit, wait int64) int64 {
	if wait < secondMicros && (!l.Algorithm.AlignsWindows() || l.Period()%secondMicros != 0) {
		return wait
	}
	return (wait + secondMicros - 1) / secondMicros * secondMicros
}

// allocResponse returns a response with memory for n statuses. If n is at most 4, it makes only one allocation.
func allocResponse(n int) (resp *rlsv3.RateLimitResponse, statuses []rlsv3.RateLimitResponse_DescriptorStatus, durations []durationpb.Duration) {
	switch {
	case n <= 1:
		m := new(responseMemory1)
		m.resp.Statuses = m.pointers[:n]
		return &m.resp, m.statuses[:n], m.durations[:n]
	case n <= 4:
		m := new(responseMemory4)
		m.resp.Statuses = m.pointers[:n]
		return &m.resp, m.statuses[:n], m.durations[:n]
	}
	resp = &rlsv3.RateLimitResponse{Statuses: make([]*rlsv3.RateLimitResponse_DescriptorStatus, n)}
	return resp, make([]rlsv3.RateLimitResponse_DescriptorStatus, n), make([]durationpb.Duration, n)
}

// responseMemory1 is a response with memory for one status. responseMemory4 has memory for four statuses.
type responseMemory1 struct {
	resp      rlsv3.RateLimitResponse
	pointers  [1]*rlsv3.RateLimitResponse_DescriptorStatus
	statuses  [1]rlsv3.RateLimitResponse_DescriptorStatus
	durations [1]durationpb.Duration
}

type responseMemory4 struct {
	resp      rlsv3.RateLimitResponse
	pointers  [4]*rlsv3.RateLimitResponse_DescriptorStatus
	statuses  [4]rlsv3.RateLimitResponse_DescriptorStatus
	durations [4]durationpb.Duration
}

const endlessWait = math.MaxInt64 // the wait for hits that never pass

// retryAfter returns the microseconds until the same call passes if nobody else sends hits. If withSlots is false,
// retryAfter skips waits for slots, unless the limit never admits the call.
func (c *Call) retryAfter(quotaMode, withSlots bool) int64 {
	var longestWait int64
	quotaModeCount, shortestQuotaModeWait := 0, int64(endlessWait)
	hitIndex := 0
	for i, rule := range c.Rules {
		firstHit, wait := hitIndex, int64(0)
		for ; hitIndex < len(c.hits) && c.hitDescriptors[hitIndex] == i; hitIndex++ {
			if w := c.wait(hitIndex); w == endlessWait || withSlots || !c.hits[hitIndex].Limit.Algorithm.HasHolds() {
				wait = max(wait, w)
			}
		}
		if isInQuotaMode(rule, hitIndex > firstHit, quotaMode) {
			quotaModeCount++
			shortestQuotaModeWait = min(shortestQuotaModeWait, wait)
		} else {
			longestWait = max(longestWait, wait)
		}
	}
	if c.isQuotaModeDenied(quotaModeCount, quotaModeCount) {
		longestWait = max(longestWait, shortestQuotaModeWait)
	}
	return longestWait
}

// wait returns the microseconds until the limit of hit j admits the same hits. If this call has charged the hits, wait
// returns the microseconds until the limit admits the hits a second time. If the limit can't deny the call, wait returns 0.
func (c *Call) wait(j int) int64 {
	h, r := &c.hits[j], &c.results[j]
	isCharged := c.keepsCharges && c.isCharged(j)
	if h.Shadow || r.Allowed && !isCharged {
		return 0
	}
	wait := h.Limit.TimeUntilAdmitted(h.N, r.Result)
	if wait == limit.Never {
		return endlessWait
	}
	return wait
}

// raiseWaits raises DurationUntilReset of each denied status to the time until all limits of the descriptor admit its hits.
func (c *Call) raiseWaits(statuses []*rlsv3.RateLimitResponse_DescriptorStatus) {
	for j := range c.hits {
		st := statuses[c.hitDescriptors[j]]
		if st.Code != rlsv3.RateLimitResponse_OVER_LIMIT {
			continue
		}
		wait := c.wait(j)
		if wait == endlessWait {
			continue // setStatus has set the end of the window
		}
		wait = roundWait(c.hits[j].Limit, wait)
		if d := st.DurationUntilReset; wait > d.Seconds*secondMicros+int64(d.Nanos)/1000 {
			setDuration(d, wait)
		}
	}
}

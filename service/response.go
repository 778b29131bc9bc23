package service

import (
	"math"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/limit"
)

const secondMicros = 1_000_000

// respond makes the response with the status of each of n descriptors; the
// overall code is still to be set.
func (c *call) respond(n int) *rlsv3.RateLimitResponse {
	resp, statuses, durations := newResponse(n)
	hit := 0
	for i, rule := range c.rules {
		st := &statuses[i]
		resp.Statuses[i] = st
		st.Code = rlsv3.RateLimitResponse_OK
		first := hit
		for hit < len(c.hits) && c.owner[hit] == i {
			hit++
		}
		switch {
		case first < hit:
			c.fill(st, &durations[i], c.decisive(first, hit), rule)
		case rule != nil && unlimited(rule):
			st.LimitRemaining = math.MaxUint32
		}
	}
	return resp
}

// decisive chooses which of one descriptor's hits [from, to) its status tells:
// of those denied the one that holds out longest, else the one with the least
// remaining; the first of equals.
func (c *call) decisive(from, to int) int {
	best := from
	for j := from + 1; j < to; j++ {
		b, r := &c.results[best], &c.results[j]
		switch {
		case r.Allowed != b.Allowed:
			if !r.Allowed {
				best = j
			}
		case r.Allowed && r.Remaining < b.Remaining,
			!r.Allowed && c.hits[j].Limit.DurationUntilReset(r.Result) > c.hits[best].Limit.DurationUntilReset(b.Result):
			best = j
		}
	}
	return best
}

func (c *call) fill(st *rlsv3.RateLimitResponse_DescriptorStatus, d *durationpb.Duration, j int, rule *descriptors.Rule) {
	l, r := c.hits[j].Limit, c.results[j].Result
	if !r.Allowed && !rule.ShadowMode {
		st.Code = rlsv3.RateLimitResponse_OVER_LIMIT
	}
	st.CurrentLimit = c.counted[j].Response
	st.LimitRemaining = uint32(min(max(r.Remaining, 0), math.MaxUint32))
	wait := told(l, l.DurationUntilReset(r))
	d.Seconds, d.Nanos = wait/secondMicros, int32(wait%secondMicros*1000)
	st.DurationUntilReset = d
}

// told is how a wait in microseconds is told: rounded up to whole seconds, as Envoy
// cuts fractions off in Retry-After and x-ratelimit-reset, and would send clients
// back too early. Below a second it is told as it is, for clients of our own; Envoy
// makes that a second. Under fixed_window it is whole seconds in any case, as the
// incumbent tells it.
func told(l *limit.Limit, wait int64) int64 {
	if wait < secondMicros && !l.Algorithm.Aligned() {
		return wait
	}
	return (wait + secondMicros - 1) / secondMicros * secondMicros
}

// unlimited tells whether rule names no limit but an unlimited one.
func unlimited(rule *descriptors.Rule) bool {
	return len(rule.Limits) == 1 && rule.Limits[0].Unlimited
}

// newResponse allocates a response with n statuses, which resp.Statuses is still
// to point to, and their durations: in one piece where n is small.
func newResponse(n int) (resp *rlsv3.RateLimitResponse, statuses []rlsv3.RateLimitResponse_DescriptorStatus, durations []durationpb.Duration) {
	switch {
	case n <= 1:
		s := new(slab1)
		s.resp.Statuses = s.pointers[:n]
		return &s.resp, s.statuses[:n], s.durations[:n]
	case n <= 4:
		s := new(slab4)
		s.resp.Statuses = s.pointers[:n]
		return &s.resp, s.statuses[:n], s.durations[:n]
	}
	resp = &rlsv3.RateLimitResponse{Statuses: make([]*rlsv3.RateLimitResponse_DescriptorStatus, n)}
	return resp, make([]rlsv3.RateLimitResponse_DescriptorStatus, n), make([]durationpb.Duration, n)
}

type slab1 struct {
	resp      rlsv3.RateLimitResponse
	pointers  [1]*rlsv3.RateLimitResponse_DescriptorStatus
	statuses  [1]rlsv3.RateLimitResponse_DescriptorStatus
	durations [1]durationpb.Duration
}

type slab4 struct {
	resp      rlsv3.RateLimitResponse
	pointers  [4]*rlsv3.RateLimitResponse_DescriptorStatus
	statuses  [4]rlsv3.RateLimitResponse_DescriptorStatus
	durations [4]durationpb.Duration
}

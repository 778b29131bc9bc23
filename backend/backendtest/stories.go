package backendtest

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

const (
	ok = true
	no = false

	m     = time.Minute
	never = limit.Never * time.Microsecond

	// tolerance bounds the error of the retry time of a step. A sliding window counts in ticks.
	tolerance = 20 * time.Millisecond
)

// story is a sequence of Takes on one key.
type story struct {
	name  string
	limit limit.Spec
	steps []step
}

type step struct {
	elapsed   time.Duration // since Start
	n         int64
	allowed   bool
	remaining int64
	retry     time.Duration
}

// anyAlgorithm has stories with the same answers in all algorithms, except for the retry
// time. The limit is 5 per hour, and a story lasts a few minutes.
var anyAlgorithm = []struct {
	name         string
	chargeDenied bool
	steps        []step
}{
	{"charges to the limit, then denies", false, []step{
		{n: 1, allowed: ok, remaining: 4},
		{n: 3, allowed: ok, remaining: 1},
		{n: 1, allowed: ok, remaining: 0},
		{n: 1, allowed: no, remaining: 0},
		{n: 5, allowed: no, remaining: 0},
	}},
	{"takes all hits or none", false, []step{
		{n: 4, allowed: ok, remaining: 1},
		{n: 2, allowed: no, remaining: 1},
		{n: 1, allowed: ok, remaining: 0},
	}},
	{"charges denied hits if the limit says so", true, []step{
		{n: 4, allowed: ok, remaining: 1},
		{elapsed: 1 * m, n: 2, allowed: no, remaining: -1},
		{elapsed: 2 * m, n: 1, allowed: no, remaining: -2},
	}},
	{"refunds", false, []step{
		{n: 5, allowed: ok, remaining: 0},
		{n: -2, allowed: ok, remaining: 2},
		{n: 2, allowed: ok, remaining: 0},
		{n: 1, allowed: no, remaining: 0},
	}},
	{"refunds debt first", true, []step{
		{n: 5, allowed: ok, remaining: 0},
		{elapsed: 1 * m, n: 1, allowed: no, remaining: -1},
		{elapsed: 2 * m, n: -2, allowed: ok, remaining: 1},
		{elapsed: 2 * m, n: 1, allowed: ok, remaining: 0},
	}},
	{"refunds at most what was charged", false, []step{
		{n: -1, allowed: ok, remaining: 5},
		{n: 1, allowed: ok, remaining: 4},
		{n: -100, allowed: ok, remaining: 5},
		{n: 5, allowed: ok, remaining: 0},
		{n: math.MinInt64, allowed: ok, remaining: 5},
		{n: 5, allowed: ok, remaining: 0},
		{n: 1, allowed: no, remaining: 0},
	}},
	{"a peek charges nothing", false, []step{
		{n: 0, allowed: ok, remaining: 5},
		{n: 4, allowed: ok, remaining: 1},
		{n: 0, allowed: ok, remaining: 1},
		{n: 1, allowed: ok, remaining: 0},
	}},
	{"more than the capacity is denied", false, []step{
		{n: 6, allowed: no, remaining: 5, retry: never},
		{n: 1 << 33, allowed: no, remaining: 5, retry: never},
		{n: math.MaxInt64, allowed: no, remaining: 5, retry: never},
		{n: 5, allowed: ok, remaining: 0},
	}},
}

var stories = []story{
	{
		"fixed_window: a window's hits are forgotten when it ends",
		limit.Spec{Algorithm: limit.FixedWindow, Requests: 5, Unit: limit.Hour},
		[]step{
			{20 * m, 3, ok, 2, 0},
			{50 * m, 3, no, 2, 10 * m},
			{50 * m, 2, ok, 0, 0},
			{59 * m, 1, no, 0, 1 * m},
			{60 * m, 5, ok, 0, 0},
			{61 * m, 1, no, 0, 59 * m},
			{500 * m, 5, ok, 0, 0},
		},
	},
	{
		"fixed_window: charged denials end with the window",
		limit.Spec{Algorithm: limit.FixedWindow, Requests: 5, Unit: limit.Hour, ChargeDenied: true},
		[]step{
			{0, 5, ok, 0, 0},
			{10 * m, 3, no, -3, 50 * m},
			{10 * m, 6, no, -9, never},
			{60 * m, 5, ok, 0, 0},
		},
	},
	{
		"fixed_window: a peek is denied only beyond the limit",
		limit.Spec{Algorithm: limit.FixedWindow, Requests: 5, Unit: limit.Hour, ChargeDenied: true},
		[]step{
			{0, 5, ok, 0, 0},
			{0, 0, ok, 0, 0},
			{0, 1, no, -1, 60 * m},
			{15 * m, 0, no, -1, 45 * m},
		},
	},
	{
		"fixed_window: windows of several units are aligned",
		limit.Spec{Algorithm: limit.FixedWindow, Requests: 5, Unit: limit.Minute, Multiplier: 15},
		[]step{
			{14 * m, 5, ok, 0, 0},
			{14 * m, 1, no, 0, 1 * m},
			{15 * m, 5, ok, 0, 0},
			{16 * m, 1, no, 0, 14 * m},
		},
	},
	{
		"sliding_window: the last window's hits fade",
		limit.Spec{Algorithm: limit.SlidingWindow, Requests: 10, Unit: limit.Hour},
		[]step{
			{0, 10, ok, 0, 0},
			{59 * m, 1, no, 0, 7 * m},
			{60 * m, 1, no, 0, 6 * m},
			{67 * m, 1, ok, 0, 0},
			{67 * m, 0, no, 0, 5 * m},
			{91 * m, 4, ok, 0, 0},
			{180 * m, 10, ok, 0, 0},
		},
	},
	{
		"sliding_window: charged denials count",
		limit.Spec{Algorithm: limit.SlidingWindow, Requests: 10, Unit: limit.Hour, ChargeDenied: true},
		[]step{
			{0, 10, ok, 0, 0},
			{30 * m, 10, no, -10, 90 * m},
			{91 * m, 0, no, 0, 2 * m},
			{92 * m, 1, no, -1, 4 * m},
		},
	},
	{
		"sliding_log: each hit is forgotten an hour later",
		limit.Spec{Algorithm: limit.SlidingLog, Requests: 3, Unit: limit.Hour},
		[]step{
			{0, 1, ok, 2, 0},
			{10 * m, 2, ok, 0, 0},
			{20 * m, 0, no, 0, 40 * m},
			{59 * m, 1, no, 0, 1 * m},
			{60 * m, 1, ok, 0, 0},
			{61 * m, 2, no, 0, 9 * m},
			{61 * m, 3, no, 0, 59 * m},
			{70 * m, 2, ok, 0, 0},
		},
	},
	{
		"sliding_log: charged denials count",
		limit.Spec{Algorithm: limit.SlidingLog, Requests: 3, Unit: limit.Hour, ChargeDenied: true},
		[]step{
			{0, 3, ok, 0, 0},
			{30 * m, 1, no, -1, 30 * m},
			{60 * m, 2, ok, 0, 0},
			{60 * m, 0, no, 0, 30 * m},
		},
	},
	{
		"first_hit_window: an hour starts with the first hit",
		limit.Spec{Algorithm: limit.FirstHitWindow, Requests: 5, Unit: limit.Hour},
		[]step{
			{20 * m, 3, ok, 2, 0},
			{65 * m, 3, no, 2, 15 * m},
			{65 * m, 2, ok, 0, 0},
			{79 * m, 1, no, 0, 1 * m},
			{80 * m, 5, ok, 0, 0},
			{81 * m, 1, no, 0, 59 * m},
		},
	},
	{
		"token_bucket: a token comes back every ten minutes",
		limit.Spec{Algorithm: limit.TokenBucket, Requests: 6, Unit: limit.Hour, Burst: 3},
		[]step{
			{0, 4, no, 3, never},
			{0, 3, ok, 0, 0},
			{0, 0, no, 0, 10 * m},
			{5 * m, 1, no, 0, 5 * m},
			{5 * m, 3, no, 0, 25 * m},
			{10 * m, 1, ok, 0, 0},
			{30 * m, 2, ok, 0, 0},
			{300 * m, 0, ok, 3, 0},
			{300 * m, 3, ok, 0, 0},
		},
	},
	{
		"token_bucket: charged denials prolong the wait",
		limit.Spec{Algorithm: limit.TokenBucket, Requests: 6, Unit: limit.Hour, Burst: 3, ChargeDenied: true},
		[]step{
			{0, 3, ok, 0, 0},
			{0, 2, no, -2, 40 * m},
			{20 * m, 1, no, -1, 20 * m},
			{40 * m, 1, ok, 0, 0},
		},
	},
}

func testStories(t *testing.T, l backend.Limiter) {
	for _, s := range anyAlgorithm {
		for _, lim := range perHour(t, l, 5, s.chargeDenied) {
			if s.chargeDenied && lim.Algorithm.HasHolds() {
				continue // denied hits take no slots
			}
			t.Run(lim.Algorithm.String()+": "+s.name, func(t *testing.T) {
				runSteps(t, l, lim, s.steps, func(s step) bool { return s.retry == never })
			})
		}
	}
	for _, s := range stories {
		t.Run(s.name, func(t *testing.T) {
			if s.limit.Algorithm.HasHolds() {
				skipWithoutHolds(t, l)
			}
			runSteps(t, l, NewLimit(t, s.limit), s.steps, func(step) bool { return true })
		})
	}
}

// testPeeksAtTheLimit peeks at a counter with 0 hits left. docs/limits.md states the answers.
func testPeeksAtTheLimit(t *testing.T, l backend.Limiter) {
	for _, lim := range perHour(t, l, 5, false) {
		hit, start := backend.Hit{Key: Key(), Limit: lim, N: 5}, Start()
		assertTake(t, l, start, hit, ok, 0)
		hit.N = 1
		assertTake(t, l, start, hit, no, 0)
		hit.N = 0
		assertTake(t, l, start, hit, lim.Algorithm.ResetsAtWindowEnd(), 0)
	}
	for _, lim := range perHour(t, l, 5, true) {
		hit, start := backend.Hit{Key: Key(), Limit: lim, N: 5}, Start()
		assertTake(t, l, start, hit, ok, 0)
		hit.N = 1
		assert.False(t, take(t, l, start, 0, hit)[0].Allowed)
		hit.N = 0
		assert.False(t, take(t, l, start, 0, hit)[0].Allowed, "%v is beyond its limit or at it", lim)
	}
}

// runSteps takes the steps on a new key. If timed is true, it also checks the retry
// time of denied steps.
func runSteps(t *testing.T, l backend.Limiter, lim *limit.Limit, steps []step, timed func(step) bool) {
	key, start, states := Key(), Start(), model{}
	for i, s := range steps {
		r := takeBoth(t, l, states, start, s.elapsed, backend.Hit{Key: key, Limit: lim, N: s.n})[0]
		assert.Equal(t, s.allowed, r.Allowed, "step %d: allowed", i+1)
		assert.Equal(t, s.remaining, r.Remaining, "step %d: remaining", i+1)
		if timed(s) && !s.allowed {
			assert.InDelta(t, s.retry, time.Duration(r.RetryAfter)*time.Microsecond, float64(tolerance), "step %d: retry", i+1)
		}
	}
}

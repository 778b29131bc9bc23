package backendtest

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// AllOrNone returns a Limiter that puts all hits of each Take into the group, except Shadow hits.
func AllOrNone(l backend.Limiter) backend.Limiter {
	if w, ok := l.(withoutHolds); ok {
		return WithoutHolds(AllOrNone(w.Limiter))
	}
	return Func(func(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
		hits = slices.Clone(hits)
		for i := range hits {
			hits[i].AllOrNone = !hits[i].Shadow
		}
		l.Take(ctx, now, hits, results)
	})
}

// RunAllOrNone tests that a Limiter charges all hits of a group or none. See backend.Hit.AllOrNone.
//
//   - If an all-or-none hit is denied, no all-or-none hit is charged. A denied hit is not
//     charged even if its limit charges denied hits.
//   - Denied hits are answered as denied. The other all-or-none hits are answered as
//     allowed, and their Remaining excludes the charges.
//   - Peeks, refunds and Shadow hits deny no other hit, and are charged as usual.
//   - A later hit on the same counter sees the charge of an earlier hit. If only one of two
//     hits fits, both are denied.
//
// The argument open is the same as in Run.
func RunAllOrNone(t *testing.T, open func(t *testing.T) backend.Limiter) {
	for _, a := range limit.Algorithms() {
		t.Run(a.String(), func(t *testing.T) {
			l := AllOrNone(open(t))
			if a.HasHolds() {
				skipWithoutHolds(t, l)
			}
			for _, s := range requestStories {
				if s.hasDebt() && a.HasHolds() {
					continue // denied hits take no slots
				}
				t.Run(s.name, func(t *testing.T) { s.run(t, l, a) })
			}
			t.Run("64 callers: each request is charged completely or not at all", func(t *testing.T) { testRequestsWhole(t, l, a) })
		})
	}
	t.Run("a denied request prolongs no lost hold", func(t *testing.T) { testLostHold(t, AllOrNone(open(t))) })
	t.Run("random requests leave exactly their holds", func(t *testing.T) { testHoldRequests(t, AllOrNone(open(t))) })
	t.Run("random requests leave exactly their charges", func(t *testing.T) { testRequestTraces(t, AllOrNone(open(t))) })
}

// anyRemaining is the wanted remaining of a hit if any value is right.
const anyRemaining = math.MinInt64

// storyHit is a hit and its expected answer. The name of the counter determines its limit.
// Counters that start with "small" admit 1, others 5. Counters with a ! at the end charge
// denied hits.
type storyHit struct {
	counter   string
	n         int64
	shadow    bool
	allowed   bool
	remaining int64
}

// requestStory is a sequence of requests, with one request in each minute. It has its own counters.
type requestStory struct {
	name     string
	requests [][]storyHit
}

const shadow = true

var requestStories = []requestStory{
	{"all hits are charged if no hit is denied", [][]storyHit{
		{{"a", 2, !shadow, ok, 3}, {"b", 1, !shadow, ok, 4}},
		{{"a", 2, !shadow, ok, 1}, {"b", 1, !shadow, ok, 3}},
	}},
	{"no hit is charged if the first or a later hit is denied", [][]storyHit{
		{{"a", 2, !shadow, ok, 3}, {"small", 1, !shadow, ok, 0}},
		{{"a", 2, !shadow, ok, 3}, {"small", 1, !shadow, no, 0}, {"b", 1, !shadow, ok, 5}},
		{{"small", 1, !shadow, no, 0}, {"a", 3, !shadow, ok, 3}},
		{{"a", 3, !shadow, ok, 0}, {"b", 5, !shadow, ok, 0}},
	}},
	{"a denied hit is not charged although its limit charges denied hits", [][]storyHit{
		{{"small!", 1, !shadow, ok, 0}},
		{{"small!", 1, !shadow, no, 0}, {"a!", 1, !shadow, ok, 5}},
		{{"small!", 1, !shadow, no, 0}},
		{{"small!", -1, !shadow, ok, 1}},
		{{"small!", 1, !shadow, ok, 0}, {"a!", 1, !shadow, ok, 4}},
	}},
	{"a hit of more than the capacity denies the other hits", [][]storyHit{
		{{"a", 1, !shadow, ok, 5}, {"b", 6, !shadow, no, 5}},
		{{"a", 1, !shadow, ok, 5}, {"b", math.MaxInt64, !shadow, no, 5}},
		{{"a", 5, !shadow, ok, 0}, {"b", 5, !shadow, ok, 0}},
	}},
	{"a denied shadow hit denies no other hit", [][]storyHit{
		{{"small", 1, shadow, ok, 0}, {"a", 1, !shadow, ok, 4}},
		{{"small", 1, shadow, no, 0}, {"a", 1, !shadow, ok, 3}},
	}},
	{"a shadow hit is charged although another hit is denied", [][]storyHit{
		{{"small", 1, !shadow, ok, 0}},
		{{"a", 1, shadow, ok, 4}, {"small", 1, !shadow, no, 0}, {"b", 1, shadow, ok, 4}},
		{{"a", 1, shadow, ok, 3}, {"b", 1, !shadow, ok, 3}},
	}},
	{"a denied shadow hit is charged if its limit charges denied hits", [][]storyHit{
		{{"a!", 4, shadow, ok, 1}},
		{{"a!", 2, shadow, no, -1}, {"b", 1, !shadow, ok, 4}},
	}},
	{"a denied peek denies no other hit", [][]storyHit{
		{{"a!", 4, shadow, ok, 1}},
		{{"a!", 2, shadow, no, -1}},
		{{"a!", 0, !shadow, no, -1}, {"b", 1, !shadow, ok, 4}},
	}},
	{"a refund takes effect although another hit is denied", [][]storyHit{
		{{"small", 1, !shadow, ok, 0}, {"a", 3, !shadow, ok, 2}},
		{{"small", 1, !shadow, no, 0}, {"a", -1, !shadow, ok, 3}},
		{{"a", 0, !shadow, ok, 3}},
	}},
	{"two hits on one counter, with room for both", [][]storyHit{
		{{"a", 2, !shadow, ok, 3}, {"a", 3, !shadow, ok, 0}},
	}},
	{"two hits on one counter, with room for one hit", [][]storyHit{
		{{"a", 3, !shadow, ok, anyRemaining}, {"a", 3, !shadow, no, anyRemaining}, {"b", 1, !shadow, ok, 5}},
		{{"a", 5, !shadow, ok, 0}, {"b", 5, !shadow, ok, 0}},
	}},
	{"two hits on one counter, and a hit on another counter is denied", [][]storyHit{
		{{"small", 1, !shadow, ok, 0}, {"a", 1, !shadow, ok, 4}},
		{{"a", 1, !shadow, ok, anyRemaining}, {"small", 1, !shadow, no, 0}, {"a", 1, !shadow, ok, anyRemaining}},
		{{"a", 4, !shadow, ok, 0}},
	}},
}

// hasDebt reports whether denied hits are charged in s.
func (s requestStory) hasDebt() bool {
	return slices.ContainsFunc(slices.Concat(s.requests...), func(h storyHit) bool { return h.remaining == -1 })
}

func (s requestStory) run(t *testing.T, l backend.Limiter, a limit.Algorithm) {
	prefix, start := Key(), Start()
	for i, request := range s.requests {
		hits := make([]backend.Hit, len(request))
		for j, h := range request {
			spec := limit.Spec{Algorithm: a, Requests: 5, Unit: limit.Hour}
			if h.counter[0] == 's' {
				spec.Requests = 1
			}
			spec.ChargeDenied = h.counter[len(h.counter)-1] == '!'
			hits[j] = backend.Hit{Key: fmt.Appendf(nil, "%s%s", prefix, h.counter), Limit: NewLimit(t, spec), N: h.n, Shadow: h.shadow}
		}
		for j, r := range take(t, l, start, time.Duration(i)*time.Minute, hits...) {
			name := fmt.Sprintf("request %d, hit %d (%s)", i+1, j+1, request[j].counter)
			assert.Equal(t, request[j].allowed, r.Allowed, "%s: allowed", name)
			if request[j].remaining != anyRemaining {
				assert.Equal(t, request[j].remaining, r.Remaining, "%s: remaining", name)
			}
			assert.True(t, r.Allowed || r.RetryAfter != 0, "%s: a denial has a wait", name)
		}
	}
}

// testRequestsWhole lets many callers charge two counters, in both orders. Each request must
// charge both counters or none.
func testRequestsWhole(t *testing.T, l backend.Limiter, a limit.Algorithm) {
	largeLimit := NewLimit(t, limit.Spec{Algorithm: a, Requests: 400, Unit: limit.Hour, ChargeDenied: true})
	smallLimit := NewLimit(t, limit.Spec{Algorithm: a, Requests: 100, Unit: limit.Hour, ChargeDenied: true})
	hits := [2]backend.Hit{{Key: Key(), Limit: largeLimit, N: 1}, {Key: Key(), Limit: smallLimit, N: 1}}
	start := Start()
	var admittedCalls atomic.Int64
	crowd(func(caller int) {
		for range 5 {
			r, err := quietTake(l, start, hits[caller%2], hits[1-caller%2])
			if assert.NoError(t, err) && r[0].Allowed && r[1].Allowed {
				admittedCalls.Add(1)
			}
		}
	})
	assert.Equal(t, int64(100), admittedCalls.Load())
	hits[0].N, hits[1].N = 0, 0
	left := take(t, l, start, 0, hits[:]...)
	assert.Equal(t, int64(300), left[0].Remaining)
	assert.Equal(t, int64(0), left[1].Remaining)
}

// histories is a simple Limiter that charges all or none. It remembers all charges of each
// counter, and computes every answer from these charges. So it can drop a charge. Only one goroutine may use it.
type histories map[string][]func(*limit.State)

// take decides one hit and remembers its charge.
func (m histories) take(h backend.Hit, now time.Time) limit.Result {
	lim := h.Limit
	if h.IsInGroup() {
		spec := lim.Spec
		spec.ChargeDenied = false
		lim, _ = limit.New(spec) // New can't fail, because only ChargeDenied has changed
	}
	var s limit.State
	for _, charge := range m[counter(h)] {
		charge(&s)
	}
	m[counter(h)] = append(m[counter(h)], func(s *limit.State) { lim.TakeHold(s, now.UnixMicro(), h.N, h.HoldID) })
	return lim.TakeHold(&s, now.UnixMicro(), h.N, h.HoldID)
}

// request decides a request and reports whether a hit has denied the group.
func (m histories) request(now time.Time, hits []backend.Hit) (results []limit.Result, denied bool) {
	for _, h := range hits {
		h.AllOrNone = !h.Shadow
		r := m.take(h, now)
		results = append(results, r)
		denied = denied || h.DeniesGroup(&backend.Result{Result: r})
	}
	if !denied {
		return results, false
	}
	for _, h := range hits {
		h.AllOrNone = !h.Shadow
		if h.IsInGroup() { // all hits of its counter in this request are in the group
			m[counter(h)] = m[counter(h)][:len(m[counter(h)])-1]
		}
	}
	for i, h := range hits {
		h.AllOrNone = !h.Shadow
		if h.IsInGroup() {
			h.N = 0
			results[i].Remaining = maps.Clone(m).take(h, now).Remaining
		}
	}
	return results, true
}

// testLostHold repeats the test with many counters, so that some requests have counters in two partitions.
func testLostHold(t *testing.T, l backend.Limiter) {
	skipWithoutHolds(t, l)
	lim, start := NewLimit(t, limit.Spec{Algorithm: limit.Concurrency, Requests: 3, Hold: time.Hour.Microseconds()}), Start()
	for range 20 {
		lostHit, fullHit := backend.Hit{Key: Key(), Limit: lim, N: 1}, backend.Hit{Key: Key(), Limit: lim, N: 3}
		require.True(t, take(t, l, start, 0, lostHit)[0].Allowed)
		require.True(t, take(t, l, start, 30*time.Minute, fullHit)[0].Allowed)
		require.False(t, take(t, l, start, 40*time.Minute, lostHit, fullHit)[1].Allowed)
		lostHit.N = 3
		require.True(t, take(t, l, start, time.Hour, lostHit)[0].Allowed, "the hold has expired")
	}
}

func counter(h backend.Hit) string { return h.Limit.Tag() + " " + string(h.Key) }

// testRequestTraces uses separate keys for shadow hits and refunds, because the contract does not say whether such a hit
// sees a charge on its counter that is refunded later.
func testRequestTraces(t *testing.T, l backend.Limiter) {
	limits, start := traceLimits(t, l), Start()
	rapid.Check(t, func(t *rapid.T) {
		keys, shadowKey := [][]byte{Key(), Key()}, Key()
		hit := rapid.Custom(func(t *rapid.T) backend.Hit {
			h := backend.Hit{Limit: rapid.SampledFrom(limits).Draw(t, "limit")}
			if rapid.Bool().Draw(t, "shadow") {
				h.Key, h.Shadow = shadowKey, true
				h.N = rapid.Int64Range(-3, 3).Draw(t, "n")
			} else {
				h.Key = rapid.SampledFrom(keys).Draw(t, "key")
				h.N = rapid.Int64Range(1, 5).Draw(t, "n")
			}
			return h
		})
		want, elapsed := histories{}, time.Duration(0)
		for range rapid.IntRange(1, 15).Draw(t, "requests") {
			elapsed += time.Duration(rapid.IntRange(0, 40).Draw(t, "minutes")) * time.Minute
			hits := rapid.SliceOfN(hit, 1, 4).Draw(t, "hits")
			times := map[string]int{}
			for _, h := range hits {
				times[counter(h)]++
			}
			answers, denied := want.request(start.Add(elapsed), hits)
			for i, r := range take(t, l, start, elapsed, hits...) {
				require.Equal(t, answers[i].Allowed, r.Allowed, "hit %d at %v: allowed", i+1, elapsed)
				if !denied {
					require.Equal(t, answers[i], r.Result, "hit %d at %v", i+1, elapsed)
				} else if times[counter(hits[i])] == 1 {
					require.Equal(t, answers[i].Remaining, r.Remaining, "hit %d at %v: remaining", i+1, elapsed)
					require.Equal(t, hits[i].Limit.TimeUntilAdmitted(hits[i].N, answers[i]), hits[i].Limit.TimeUntilAdmitted(hits[i].N, r.Result), "hit %d at %v: retry", i+1, elapsed)
				}
			}
		}
	})
}

package backendtest

import (
	"fmt"
	"maps"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// RunAllOrNone checks a Limiter that charges the hits of one Take all or none:
//
//   - If a hit with N > 0 that is not Shadow is denied, no hit with N > 0 that is
//     not Shadow is charged, the denied one neither, even where its limit charges
//     denied hits.
//   - The denied ones are answered as denied; the others as allowed, with what
//     remains now that they are not charged.
//   - Peeks, returns and Shadow hits deny nobody, and are charged as ever.
//   - A later hit on the same counter sees the earlier one's charge: two that
//     pass only one at a time are denied together.
//
// open is as for Run.
func RunAllOrNone(t *testing.T, open func(t *testing.T) backend.Limiter) {
	for _, a := range limit.Algorithms() {
		t.Run(a.String(), func(t *testing.T) {
			l := open(t)
			for _, s := range requestStories {
				t.Run(s.name, func(t *testing.T) { s.tell(t, l, a) })
			}
			t.Run("64 callers never split a request", func(t *testing.T) { testRequestsWhole(t, l, a) })
		})
	}
	t.Run("random requests leave what was charged and nothing else", func(t *testing.T) { testRequestTraces(t, open(t)) })
}

// unsaid as a remaining says that the answer doesn't matter.
const unsaid = math.MinInt64

// ask is a hit and its answer. Counters are told apart by their names: small ones
// admit 1, all others 5. Those whose name ends in ! charge denied hits.
type ask struct {
	counter   string
	n         int64
	shadow    bool
	allowed   bool
	remaining int64
}

// requestStory is what happens to the counters of one prefix, a request a minute.
type requestStory struct {
	name     string
	requests [][]ask
}

const shadow = true

var requestStories = []requestStory{
	{"all are charged when all pass", [][]ask{
		{{"a", 2, !shadow, ok, 3}, {"b", 1, !shadow, ok, 4}},
		{{"a", 2, !shadow, ok, 1}, {"b", 1, !shadow, ok, 3}},
	}},
	{"none is charged when one is denied, whichever is first", [][]ask{
		{{"a", 2, !shadow, ok, 3}, {"small", 1, !shadow, ok, 0}},
		{{"a", 2, !shadow, ok, 3}, {"small", 1, !shadow, no, 0}, {"b", 1, !shadow, ok, 5}},
		{{"small", 1, !shadow, no, 0}, {"a", 3, !shadow, ok, 3}},
		{{"a", 3, !shadow, ok, 0}, {"b", 5, !shadow, ok, 0}},
	}},
	{"a denied hit costs nothing though its limit charges denied hits", [][]ask{
		{{"small!", 1, !shadow, ok, 0}},
		{{"small!", 1, !shadow, no, 0}, {"a!", 1, !shadow, ok, 5}},
		{{"small!", 1, !shadow, no, 0}},
		{{"small!", -1, !shadow, ok, 1}},
		{{"small!", 1, !shadow, ok, 0}, {"a!", 1, !shadow, ok, 4}},
	}},
	{"more hits than a capacity deny the others", [][]ask{
		{{"a", 1, !shadow, ok, 5}, {"b", 6, !shadow, no, 5}},
		{{"a", 1, !shadow, ok, 5}, {"b", math.MaxInt64, !shadow, no, 5}},
		{{"a", 5, !shadow, ok, 0}, {"b", 5, !shadow, ok, 0}},
	}},
	{"a denied shadow hit denies nobody", [][]ask{
		{{"small", 1, shadow, ok, 0}, {"a", 1, !shadow, ok, 4}},
		{{"small", 1, shadow, no, 0}, {"a", 1, !shadow, ok, 3}},
	}},
	{"a shadow hit is charged though another is denied", [][]ask{
		{{"small", 1, !shadow, ok, 0}},
		{{"a", 1, shadow, ok, 4}, {"small", 1, !shadow, no, 0}, {"b", 1, shadow, ok, 4}},
		{{"a", 1, shadow, ok, 3}, {"b", 1, !shadow, ok, 3}},
	}},
	{"a denied shadow hit is charged where its limit says so", [][]ask{
		{{"a!", 4, shadow, ok, 1}},
		{{"a!", 2, shadow, no, -1}, {"b", 1, !shadow, ok, 4}},
	}},
	{"a denied peek denies nobody", [][]ask{
		{{"a!", 4, shadow, ok, 1}},
		{{"a!", 2, shadow, no, -1}},
		{{"a!", 0, !shadow, no, -1}, {"b", 1, !shadow, ok, 4}},
	}},
	{"hits are given back though another is denied", [][]ask{
		{{"small", 1, !shadow, ok, 0}, {"a", 3, !shadow, ok, 2}},
		{{"small", 1, !shadow, no, 0}, {"a", -1, !shadow, ok, 3}},
		{{"a", 0, !shadow, ok, 3}},
	}},
	{"one counter twice, with room for both", [][]ask{
		{{"a", 2, !shadow, ok, 3}, {"a", 3, !shadow, ok, 0}},
	}},
	{"one counter twice, with room for one", [][]ask{
		{{"a", 3, !shadow, ok, unsaid}, {"a", 3, !shadow, no, unsaid}, {"b", 1, !shadow, ok, 5}},
		{{"a", 5, !shadow, ok, 0}, {"b", 5, !shadow, ok, 0}},
	}},
	{"one counter twice, and another is denied", [][]ask{
		{{"small", 1, !shadow, ok, 0}, {"a", 1, !shadow, ok, 4}},
		{{"a", 1, !shadow, ok, unsaid}, {"small", 1, !shadow, no, 0}, {"a", 1, !shadow, ok, unsaid}},
		{{"a", 4, !shadow, ok, 0}},
	}},
}

func (s requestStory) tell(t *testing.T, l backend.Limiter, a limit.Algorithm) {
	prefix, start := Key(), Start()
	for i, asks := range s.requests {
		hits := make([]backend.Hit, len(asks))
		for j, ask := range asks {
			spec := limit.Spec{Algorithm: a, Requests: 5, Unit: limit.Hour}
			if ask.counter[0] == 's' {
				spec.Requests = 1
			}
			spec.ChargeDenied = ask.counter[len(ask.counter)-1] == '!'
			hits[j] = backend.Hit{Key: fmt.Appendf(nil, "%s%s", prefix, ask.counter), Limit: NewLimit(t, spec), N: ask.n, Shadow: ask.shadow}
		}
		for j, r := range take(t, l, start, time.Duration(i)*time.Minute, hits...) {
			name := fmt.Sprintf("request %d, hit %d (%s)", i+1, j+1, asks[j].counter)
			assert.Equal(t, asks[j].allowed, r.Allowed, "%s: allowed", name)
			if asks[j].remaining != unsaid {
				assert.Equal(t, asks[j].remaining, r.Remaining, "%s: remaining", name)
			}
			assert.Equal(t, r.Allowed, r.RetryAfter == 0, "%s: retry %d", name, r.RetryAfter)
		}
	}
}

// testRequestsWhole lets callers charge two counters in both orders: each request
// must have charged both or none, whatever they got in each other's way.
func testRequestsWhole(t *testing.T, l backend.Limiter, a limit.Algorithm) {
	wide := NewLimit(t, limit.Spec{Algorithm: a, Requests: 400, Unit: limit.Hour, ChargeDenied: true})
	tight := NewLimit(t, limit.Spec{Algorithm: a, Requests: 100, Unit: limit.Hour, ChargeDenied: true})
	hits := [2]backend.Hit{{Key: Key(), Limit: wide, N: 1}, {Key: Key(), Limit: tight, N: 1}}
	start := Start()
	var admitted atomic.Int64
	crowd(func(caller int) {
		for range 5 {
			r, err := quietTake(l, start, hits[caller%2], hits[1-caller%2])
			if assert.NoError(t, err) && r[0].Allowed && r[1].Allowed {
				admitted.Add(1)
			}
		}
	})
	assert.Equal(t, int64(100), admitted.Load())
	hits[0].N, hits[1].N = 0, 0
	left := take(t, l, start, 0, hits[:]...)
	assert.Equal(t, int64(300), left[0].Remaining)
	assert.Equal(t, int64(0), left[1].Remaining)
}

// histories is the simplest Limiter that charges all or none: it remembers what
// each counter was charged and counts it all again for every answer, so that it
// can forget a charge. It is for one goroutine.
type histories map[string][]func(*limit.State)

// take answers one hit and remembers its charge.
func (m histories) take(h backend.Hit, now time.Time) limit.Result {
	lim := h.Limit
	if h.AllOrNone() {
		spec := lim.Spec
		spec.ChargeDenied = false
		lim, _ = limit.New(spec) // right as it was
	}
	var s limit.State
	for _, charge := range m[counter(h)] {
		charge(&s)
	}
	m[counter(h)] = append(m[counter(h)], func(s *limit.State) { lim.Take(s, now.UnixMicro(), h.N) })
	return lim.Take(&s, now.UnixMicro(), h.N)
}

// request answers a request and tells whether any of its hits denied the others.
func (m histories) request(now time.Time, hits []backend.Hit) (results []limit.Result, denied bool) {
	for _, h := range hits {
		r := m.take(h, now)
		results = append(results, r)
		denied = denied || h.AllOrNone() && !r.Allowed
	}
	if !denied {
		return results, false
	}
	for _, h := range hits {
		if h.AllOrNone() { // all charges of its counter in this request are of its kind
			m[counter(h)] = m[counter(h)][:len(m[counter(h)])-1]
		}
	}
	for i, h := range hits {
		if h.AllOrNone() {
			h.N = 0
			results[i].Remaining = maps.Clone(m).take(h, now).Remaining
		}
	}
	return results, true
}

func counter(h backend.Hit) string { return h.Limit.Tag() + " " + string(h.Key) }

// testRequestTraces keeps shadow hits and returns to keys of their own, as it is
// open what they see of a charge on the same counter that is not made in the end.
func testRequestTraces(t *testing.T, l backend.Limiter) {
	limits, start := traced(t), Start()
	rapid.Check(t, func(t *rapid.T) {
		keys, loose := [][]byte{Key(), Key()}, Key()
		hit := rapid.Custom(func(t *rapid.T) backend.Hit {
			h := backend.Hit{Limit: rapid.SampledFrom(limits).Draw(t, "limit")}
			if rapid.Bool().Draw(t, "loose") {
				h.Key, h.Shadow = loose, true
				h.N = rapid.Int64Range(-3, 3).Draw(t, "n")
			} else {
				h.Key = rapid.SampledFrom(keys).Draw(t, "key")
				h.N = rapid.Int64Range(1, 5).Draw(t, "n")
			}
			return h
		})
		want, at := histories{}, time.Duration(0)
		for range rapid.IntRange(1, 15).Draw(t, "requests") {
			at += time.Duration(rapid.IntRange(0, 40).Draw(t, "minutes")) * time.Minute
			hits := rapid.SliceOfN(hit, 1, 4).Draw(t, "hits")
			times := map[string]int{}
			for _, h := range hits {
				times[counter(h)]++
			}
			answers, denied := want.request(start.Add(at), hits)
			for i, r := range take(t, l, start, at, hits...) {
				require.Equal(t, answers[i].Allowed, r.Allowed, "hit %d at %v: allowed", i+1, at)
				if !denied {
					require.Equal(t, answers[i], r.Result, "hit %d at %v", i+1, at)
				} else if times[counter(hits[i])] == 1 {
					require.Equal(t, answers[i].Remaining, r.Remaining, "hit %d at %v: remaining", i+1, at)
					require.Equal(t, answers[i].RetryAfter, r.RetryAfter, "hit %d at %v: retry", i+1, at)
				}
			}
		}
	})
}

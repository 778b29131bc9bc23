package backendtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// testHolds takes, renews and releases holds with several ids, and anonymous holds.
func testHolds(t *testing.T, l backend.Limiter) {
	skipWithoutHolds(t, l)
	var limits []*limit.Limit // limits of one counter, as a reload can change them
	for _, s := range []limit.Spec{{Requests: 4, Hold: time.Hour.Microseconds()}, {Requests: 7, Hold: 2 * time.Hour.Microseconds()}} {
		s.Algorithm = limit.Concurrency
		limits = append(limits, NewLimit(t, s))
	}
	start := Start()
	rapid.Check(t, func(t *rapid.T) {
		keys := [][]byte{Key(), Key()}
		states, elapsed := model{}, time.Duration(0)
		for range rapid.IntRange(1, 25).Draw(t, "takes") {
			elapsed += time.Duration(rapid.IntRange(0, 40).Draw(t, "minutes")) * time.Minute
			takeBoth(t, l, states, start, elapsed, rapid.SliceOfN(holdHit(keys, limits, -3), 1, 6).Draw(t, "hits")...)
		}
	})
}

// testHoldRequests is testHolds for a Limiter that charges all or none. It takes less time than a hold
// lasts, because in a cluster a denied request can change the expiry of other holds.
func testHoldRequests(t *testing.T, l backend.Limiter) {
	skipWithoutHolds(t, l)
	limits, start := []*limit.Limit{NewLimit(t, limit.Spec{Algorithm: limit.Concurrency, Requests: 4})}, Start()
	rapid.Check(t, func(t *rapid.T) {
		keys := [][]byte{Key(), Key()}
		want, elapsed := histories{}, time.Duration(0)
		for range rapid.IntRange(1, 15).Draw(t, "requests") {
			elapsed += time.Duration(rapid.IntRange(0, 3).Draw(t, "minutes")) * time.Minute
			hits := rapid.SliceOfN(holdHit(keys, limits, 1), 1, 4).Draw(t, "hits")
			answers, denied := want.request(start.Add(elapsed), hits)
			for i, r := range take(t, l, start, elapsed, hits...) {
				require.Equal(t, answers[i].Allowed, r.Allowed, "hit %d at %v", i+1, elapsed)
				if !denied {
					require.Equal(t, answers[i].Remaining, r.Remaining, "hit %d at %v", i+1, elapsed)
				}
			}
		}
		for _, key := range keys { // a denied request has left no trace
			peek := backend.Hit{Key: key, Limit: limits[0]}
			answer, _ := want.request(start.Add(elapsed), []backend.Hit{peek})
			assert.Equal(t, answer[0].Remaining, take(t, l, start, elapsed, peek)[0].Remaining)
		}
	})
}

// holdHit draws a hit of at least minHits. Most hits name a hold.
func holdHit(keys [][]byte, limits []*limit.Limit, minHits int64) *rapid.Generator[backend.Hit] {
	return rapid.Custom(func(t *rapid.T) backend.Hit {
		return backend.Hit{
			Key:    rapid.SampledFrom(keys).Draw(t, "key"),
			Limit:  rapid.SampledFrom(limits).Draw(t, "limit"),
			N:      rapid.Int64Range(minHits, 4).Draw(t, "n"),
			HoldID: rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "hold"),
		}
	})
}

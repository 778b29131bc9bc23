package lua_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/limit"
)

func TestScriptAnswersHoldsAsPackageLimit(t *testing.T) {
	for _, slots := range []uint32{1, 5, 60} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			t.Parallel()
			r, rnd := openRedis(t), rand.New(rand.NewPCG(uint64(slots), 7))
			var limits []*limit.Limit
			for _, hold := range []int64{10_000_000, 1_000_000} {
				limits = append(limits, newLimit(t, limit.Spec{Algorithm: limit.Concurrency, Requests: slots, Hold: hold}))
			}
			var s limit.State
			now, maxEntries := time.Now().UnixMicro(), 0
			for step := range 1500 {
				now += rnd.Int64N(400_000)
				var hits []hit
				for range 1 + rnd.IntN(8) {
					h := hit{key: "holds", limit: limits[rnd.IntN(20)/19], n: []int64{1, 1, 1, 2, 3, 0, -1, -2}[rnd.IntN(8)]}
					if rnd.IntN(4) > 0 {
						h.hold = fmt.Sprint("id", rnd.IntN(2*int(slots)+1))
					} else if h.n < 0 && rnd.IntN(2) > 0 {
						h.refundedExpiry = now + h.limit.Period()
					}
					hits = append(hits, h)
				}
				got := r.take(now, nil, hits...)
				for i, h := range hits {
					require.Empty(t, got[i].err)
					want := limit.Result{}
					if h.refundedExpiry != 0 {
						want = h.limit.Undo(&s, now, -h.n, "", 0)
						want.Allowed, want.RetryAfter = true, 0 // a refund is always allowed
					} else {
						want = h.limit.TakeHold(&s, now, h.n, h.hold)
					}
					require.Equal(t, want, got[i].Result, "step %d, hit %d: %d hits of %q", step, i, h.n, h.hold)
				}
				r.requireKeys(map[string]*limit.State{"holds": &s}, limit.Concurrency)
				maxEntries = max(maxEntries, s.EntryCount())
			}
			assert.Positive(t, maxEntries)
		})
	}
}

func TestDeniedGroupChangesNoHolds(t *testing.T) {
	r := openRedis(t)
	now := time.Now().UnixMicro()
	l := newLimit(t, limit.Spec{Algorithm: limit.Concurrency, Requests: 2})
	newHit := func(key, id string, n int64) hit { return hit{key: key, limit: l, n: n, hold: id, allOrNone: true} }
	require.True(t, r.take(now, nil, hit{key: "a", limit: l, n: 1, hold: "1"})[0].Allowed)

	laterTime := now + 10_000_000
	got := r.take(laterTime, []int64{3}, newHit("a", "1", 1), newHit("a", "2", 1), newHit("b", "1", 3))
	assert.True(t, got[0].HoldExists)
	assert.True(t, got[1].Allowed)
	assert.False(t, got[2].Allowed)
	assert.Equal(t, int64(limit.Never), got[2].RetryAfter)
	peeks := r.take(laterTime, nil, hit{key: "a", limit: l, hold: "1"}, hit{key: "a", limit: l, hold: "2"}, hit{key: "b", limit: l})
	assert.Equal(t, int64(20_000_000), peeks[0].ResetAfter, "a denied group renews no hold")
	assert.False(t, peeks[1].HoldExists)
	assert.Equal(t, int64(2), peeks[2].Remaining)

	got = r.take(laterTime, []int64{2}, newHit("a", "1", 1), newHit("a", "2", 1))
	assert.True(t, got[0].HoldExists && got[1].Allowed)
	assert.Equal(t, int64(30_000_000), got[0].ResetAfter)
}

// A set of holds that another program has changed must not fail the other hits of the call.
func TestDamagedHoldsFailNoOtherHits(t *testing.T) {
	r := openRedis(t)
	ctx := t.Context()
	l := newLimit(t, limit.Spec{Algorithm: limit.Concurrency, Requests: 2})
	fixedWindow := newLimit(t, limit.Spec{Requests: 2, Unit: limit.Hour})
	now := time.Now().UnixMicro()
	require.True(t, r.take(now, nil, hit{key: "holds", limit: l, n: 2, hold: "1"})[0].Allowed)
	for _, member := range []string{"wi1", "i1"} {
		require.NoError(t, r.client.ZRem(ctx, r.prefix+"holds", member).Err())
		got := r.take(now, nil, hit{key: "holds", limit: l, n: 1}, hit{key: "other", limit: fixedWindow, n: 0})
		assert.Empty(t, got[1].err)
		assert.True(t, got[1].Allowed)
	}
	require.NoError(t, r.client.ZAdd(ctx, r.prefix+"foreign", newMember(1, "member")).Err())
	require.NoError(t, r.client.Expire(ctx, r.prefix+"foreign", time.Hour).Err())
	assert.Contains(t, r.take(now, nil, hit{key: "foreign", limit: l, n: 1})[0].err, "WRONGTYPE")
}

// The script reads only a few holds of a key, so the time for a hit does not depend on their number.
func TestTimeForAHitDoesNotDependOnTheNumberOfHolds(t *testing.T) {
	r := openRedis(t)
	const holds = 50_000
	l := newLimit(t, limit.Spec{Algorithm: limit.Concurrency, Requests: holds, Hold: limit.MaxHold})
	now := time.Now().UnixMicro()
	var hits []hit
	for i := range holds {
		if hits = append(hits, hit{key: "holds", limit: l, n: 1, hold: fmt.Sprint(i)}); len(hits) == 500 {
			r.take(now, nil, hits...)
			hits = nil
		}
	}
	cpuBefore := cpuMicros(t, r.client)
	for i := range 20 {
		id := fmt.Sprint(i * 1000)
		require.False(t, r.take(now+1, nil, hit{key: "holds", limit: l, n: 1, hold: "new"})[0].Allowed)
		require.True(t, r.take(now+1, nil, hit{key: "holds", limit: l, n: 1, hold: id})[0].HoldExists)
		require.True(t, r.take(now+1, nil, hit{key: "holds", limit: l, n: -1, hold: id})[0].Allowed)
		require.True(t, r.take(now+1, nil, hit{key: "holds", limit: l, n: 1, hold: id})[0].Allowed)
	}
	assert.Less(t, cpuMicros(t, r.client)-cpuBefore, 80*1000.0, "microseconds of Redis for 80 calls")
}

package lua_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/limit"
)

func TestGroupIsChargedAllOrNone(t *testing.T) {
	for _, a := range limit.Algorithms() {
		t.Run(a.String(), func(t *testing.T) {
			r := openRedis(t)
			now := time.Now().UnixMicro()
			l := newLimit(t, limit.Spec{Algorithm: a, Requests: 10, Unit: limit.Hour, ChargeDenied: true})
			groupHit := func(key string, n int64) hit { return hit{key: key + l.Tag(), limit: l, n: n, allOrNone: true} }
			singleHit := func(key string, n int64) hit { return hit{key: key + l.Tag(), limit: l, n: n} }
			remaining := func(key string) int64 { return r.take(now, nil, singleHit(key, 0))[0].Remaining }

			got := r.take(now, []int64{2, 2}, groupHit("a", 4), groupHit("b", 5), groupHit("a", 6), groupHit("c", 1))
			for i, want := range []int64{6, 5, 0, 9} {
				assert.True(t, got[i].Allowed)
				assert.Equal(t, want, got[i].Remaining)
			}

			// b has 5 hits left, so c is not charged. The next group is separate.
			got = r.take(now, []int64{2, 1}, groupHit("c", 2), groupHit("b", 6), groupHit("c", 1))
			assert.True(t, got[0].Allowed)
			assert.Equal(t, int64(9), got[0].Remaining)
			assert.Zero(t, got[0].RetryAfter)
			assert.False(t, got[1].Allowed)
			assert.Equal(t, int64(5), got[1].Remaining, "all-or-none hits are not charged if denied")
			assert.Positive(t, got[1].RetryAfter)
			assert.Equal(t, int64(8), got[2].Remaining)

			// If a group has a counter twice, the second hit sees the charge of the first hit.
			got = r.take(now, []int64{2}, groupHit("d", 6), groupHit("d", 6))
			assert.True(t, got[0].Allowed)
			assert.False(t, got[1].Allowed)
			assert.Equal(t, int64(10), remaining("d"))
			got = r.take(now, []int64{2}, groupHit("d", 5), groupHit("d", 5))
			assert.True(t, got[1].Allowed)
			assert.Equal(t, int64(0), remaining("d"))

			// Other hits do not deny the group and are charged in any case.
			got = r.take(now, []int64{2}, singleHit("d", 1), groupHit("e", 1))
			assert.False(t, got[0].Allowed)
			assert.True(t, got[1].Allowed)
			assert.Equal(t, int64(9), remaining("e"))
			got = r.take(now, []int64{4}, groupHit("b", 6), groupHit("e", 1), singleHit("e", 2), singleHit("e", -1))
			assert.False(t, got[0].Allowed)
			assert.Equal(t, int64(9), got[1].Remaining)
			assert.Equal(t, int64(7), got[2].Remaining)
			assert.Equal(t, int64(8), got[3].Remaining)
		})
	}
}

func TestShadowHitIsChargedWithItsGroupAndDoesNotDenyIt(t *testing.T) {
	for _, a := range limit.Algorithms() {
		t.Run(a.String(), func(t *testing.T) {
			r := openRedis(t)
			now := time.Now().UnixMicro()
			l := newLimit(t, limit.Spec{Algorithm: a, Requests: 10, Unit: limit.Hour, ChargeDenied: true})
			groupHit := func(key string, n int64) hit { return hit{key: key + l.Tag(), limit: l, n: n, allOrNone: true} }
			shadowHit := func(key string, n int64) hit {
				return hit{key: key + l.Tag(), limit: l, n: n, allOrNone: true, shadow: true}
			}
			remaining := func(key string) int64 {
				return r.take(now, nil, hit{key: key + l.Tag(), limit: l})[0].Remaining
			}

			got := r.take(now, []int64{2}, groupHit("a", 4), shadowHit("b", 11))
			assert.True(t, got[0].Allowed)
			assert.False(t, got[1].Allowed)
			assert.Equal(t, []int64{6, 10}, []int64{remaining("a"), remaining("b")})

			got = r.take(now, []int64{2}, groupHit("a", 7), shadowHit("b", 1))
			assert.False(t, got[0].Allowed)
			assert.True(t, got[1].Allowed)
			assert.Equal(t, []int64{6, 10}, []int64{remaining("a"), remaining("b")})

			got = r.take(now, []int64{2}, groupHit("a", 6), shadowHit("b", 1))
			assert.True(t, got[0].Allowed)
			assert.Equal(t, []int64{0, 9}, []int64{remaining("a"), remaining("b")})
		})
	}
}

func TestDenialMayEndEarlyWhileChargesMayBeRefunded(t *testing.T) {
	for _, a := range limit.Algorithms() {
		t.Run(a.String(), func(t *testing.T) {
			r := openRedis(t)
			now := time.Now().UnixMicro()
			l := newLimit(t, limit.Spec{Algorithm: a, Requests: 2, Unit: limit.Hour})
			key := "a" + l.Tag()
			plainHit := hit{key: key, limit: l, n: 1}
			groupHit := hit{key: key, limit: l, n: 1, allOrNone: true, refundable: true}
			r.take(now, nil, plainHit)
			require.True(t, r.take(now, []int64{1}, groupHit)[0].Allowed)
			got := r.take(now, nil, plainHit)[0]
			assert.False(t, got.Allowed)
			assert.True(t, got.mayEndEarly)
			assert.Positive(t, got.ResetAfter)
			got = r.take(now, []int64{1}, groupHit)[0]
			assert.True(t, got.mayEndEarly, "the denial of a hit of such a group may end early too")

			client := r.client
			mark := r.prefix + key + "%refundable"
			assert.Positive(t, client.PTTL(t.Context(), mark).Val())
			require.NoError(t, client.Del(t.Context(), mark).Err()) // as Redis does when the time to live is over
			got = r.take(now, nil, plainHit)[0]
			assert.False(t, got.Allowed)
			assert.False(t, got.mayEndEarly)
			assert.False(t, r.take(now, []int64{1}, groupHit)[0].mayEndEarly, "a denied hit charges nothing")
			assert.Zero(t, client.Exists(t.Context(), mark).Val())
		})
	}
}

func TestFailedHitDoesNotDenyItsGroup(t *testing.T) {
	r := openRedis(t)
	now := time.Now().UnixMicro()
	for _, a := range limit.Algorithms() {
		l := newLimit(t, limit.Spec{Algorithm: a, Requests: 10, Unit: limit.Hour})
		require.NoError(t, r.client.Set(t.Context(), r.prefix+"text", "not a counter", time.Hour).Err())
		got := r.take(now, []int64{3},
			hit{key: "text", limit: l, n: 1, allOrNone: true},
			hit{key: "a" + l.Tag(), limit: l, n: 3, allOrNone: true},
			hit{key: "b" + l.Tag(), limit: l, n: 11, allOrNone: true})
		assert.Contains(t, got[0].err, "WRONGTYPE")
		assert.True(t, got[1].Allowed)
		assert.Equal(t, int64(10), got[1].Remaining)
		assert.False(t, got[2].Allowed)
	}
}

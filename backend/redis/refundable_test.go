package redis_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/limit"
)

// One replica charges a group in two steps. Another replica denies hits meanwhile.
func TestDenialMayEndEarlyOnlyWhileAGroupMayBeRefunded(t *testing.T) {
	t.Parallel()
	main, perSecond := redistest.Start(t), redistest.Start(t)
	cluster := redistest.StartCluster(t, 3, false)
	for name, o := range map[string]redis.Options{
		"Redis for limits per second": {Main: redis.Server{URL: main.Addr}, PerSecond: &redis.Server{URL: perSecond.Addr}},
		"Cluster":                     {Main: redis.Server{Kind: redis.Cluster, URL: cluster.URL()}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.Timeout = time.Second
			denyingReplica, chargingReplica := open(t, o), open(t, o)
			dayLimit, scriptLimit := checkDenialsOfAGroup(t, denyingReplica, chargingReplica)
			for _, lim := range []*limit.Limit{dayLimit, scriptLimit} {
				polltest.Until(t, 10*time.Second, func() bool { return !take(denyingReplica, hit("shared", lim, 1))[0].DenialMayEndEarly })
			}
		})
	}
}

// checkDenialsOfAGroup checks which denials may end early after chargingReplica has charged a group in two steps. It returns
// limits with a counter on which the group has charged all hits.
func checkDenialsOfAGroup(t *testing.T, denyingReplica, chargingReplica *redis.Limiter) (dayLimit, scriptLimit *limit.Limit) {
	dayLimit = newLimit(t, limit.Spec{Requests: 2, Unit: limit.Day, ChargeDenied: true})
	scriptLimit = newLimit(t, limit.Spec{Requests: 2, Unit: limit.Day}) // on the same counters
	secondLimit := newLimit(t, limit.Spec{Requests: 1000, Unit: limit.Second, ChargeDenied: true})

	require.True(t, take(denyingReplica, hit("spent", dayLimit, 2))[0].Allowed)
	denial := take(denyingReplica, hit("spent", dayLimit, 1))[0]
	require.False(t, denial.Allowed)
	assert.False(t, denial.DenialMayEndEarly, "no group was charged")

	wholeGroup := []backend.Hit{hit("whole", dayLimit, 2), hit("whole", newLimit(t, limit.Spec{Requests: 5, Unit: limit.Hour}), 1)}
	denial = denialAfterGroup(t, chargingReplica, denyingReplica, wholeGroup)
	assert.False(t, denial.DenialMayEndEarly, "a group in one step needs no refund")

	group := []backend.Hit{hit("shared", dayLimit, 2), hit(keyInOtherPartition(denyingReplica, "shared", dayLimit, secondLimit), secondLimit, 1)}
	denial = denialAfterGroup(t, chargingReplica, denyingReplica, group)
	assert.True(t, denial.DenialMayEndEarly, "the group may be refunded")
	denial = take(denyingReplica, hit("shared", scriptLimit, 1))[0]
	assert.True(t, denial.DenialMayEndEarly)
	assert.Positive(t, denial.ResetAfter)
	assert.False(t, take(denyingReplica, hit("spent", scriptLimit, 1))[0].DenialMayEndEarly, "the script knows that the group is on another counter")
	return dayLimit, scriptLimit
}

func TestDenialByAGroupInTwoRedisMayEndEarly(t *testing.T) {
	t.Parallel()
	main, perSecond := redistest.Start(t), redistest.Start(t)
	o := redis.Options{Main: redis.Server{URL: main.Addr}, PerSecond: &redis.Server{URL: perSecond.Addr}, Timeout: testTimeout}
	checkDenialsOfAGroup(t, open(t, o), open(t, o))
}

// Each Redis charges its hits of a group in one step. If one of them denies its hits, the others get a refund.
func TestGroupInTwoRedisIsChargedAsAWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	main, perSecond := redistest.Start(t), redistest.Start(t)
	l := open(t, redis.Options{Main: redis.Server{URL: main.Addr}, PerSecond: &redis.Server{URL: perSecond.Addr}, Timeout: testTimeout})
	dayLimit, noHits := newLimit(t, limit.Spec{Requests: 5, Unit: limit.Day}), newLimit(t, limit.Spec{Unit: limit.Second})
	secondLimit := newLimit(t, limit.Spec{Requests: 1000, Unit: limit.Second, Algorithm: limit.TokenBucket})
	spent := func(lim *limit.Limit) int64 { return lim.Spent(take(l, hit("a", lim, 0))[0].Result) }
	var results []backend.Result
	takeGroup := func(hits ...backend.Hit) (isAdmitted []bool) {
		for i := range hits {
			hits[i].AllOrNone = true
		}
		results = take(l, hits...)
		for _, r := range results {
			require.NoError(t, r.Err)
			isAdmitted = append(isAdmitted, r.Allowed)
		}
		return isAdmitted
	}
	require.Equal(t, []bool{true, true}, takeGroup(hit("a", dayLimit, 2), hit("a", secondLimit, 1)))
	assert.Equal(t, int64(2), spent(dayLimit))

	require.Equal(t, []bool{true, false}, takeGroup(hit("a", dayLimit, 2), hit("a", noHits, 1)))
	assert.Equal(t, int64(2), spent(dayLimit), "the charge is refunded")
	assert.Equal(t, int64(3), results[0].Remaining, "the answer shows the refund")
	require.Equal(t, []bool{true, true}, takeGroup(hit("a", dayLimit, 1), hit("a", secondLimit, 0)))
	assert.Equal(t, int64(3), spent(dayLimit))
	require.Equal(t, []bool{true, true, false}, takeGroup(hit("a", dayLimit, -1), hit("b", dayLimit, 1), hit("a", noHits, 1)))
	assert.Equal(t, int64(2), spent(dayLimit), "a refund is no part of the group, so nothing takes it back")
	deniedShadow := hit("a", dayLimit, 4)
	deniedShadow.Shadow = true
	require.Equal(t, []bool{false, false}, takeGroup(deniedShadow, hit("a", noHits, 1)))
	assert.Equal(t, int64(2), spent(dayLimit), "a denied hit is not charged, so it gets no refund")

	holds := newLimit(t, limit.Spec{Requests: 2, Algorithm: limit.Concurrency})
	for _, holdID := range []string{"", "holder"} {
		hold := hit("a", holds, 1)
		hold.HoldID = holdID
		require.Equal(t, []bool{true, false}, takeGroup(hold, hit("a", noHits, 1)))
		assert.Zero(t, spent(holds), "the slot of the holder %q is free again", holdID)
	}
	existingHold := hit("a", holds, 1)
	existingHold.HoldID = "holder"
	require.True(t, take(l, existingHold)[0].Allowed)
	require.Equal(t, []bool{true, false}, takeGroup(existingHold, hit("a", noHits, 1)))
	assert.Equal(t, int64(1), spent(holds), "the group only renewed the hold, so it stays")
}

// keyInOtherPartition returns a key. Its counter of the limit other is in another partition than the counter of key and lim.
func keyInOtherPartition(l *redis.Limiter, key string, lim, other *limit.Limit) string {
	firstHit := hit(key, lim, 1)
	for i := 0; ; i++ {
		secondHit := hit(fmt.Sprint("other", i), other, 1)
		if l.ShardOf(&secondHit) != l.ShardOf(&firstHit) {
			return string(secondHit.Key)
		}
	}
}

// denialAfterGroup charges the group all or none in one replica. The first hit of the group must use up its limit, so the
// other replica denies one more hit on this counter. denialAfterGroup returns the denial.
func denialAfterGroup(t *testing.T, chargingReplica, denyingReplica backend.Limiter, group []backend.Hit) backend.Result {
	t.Helper()
	for i := range group {
		group[i].AllOrNone = true
	}
	require.True(t, take(chargingReplica, group...)[0].Allowed)
	denial := take(denyingReplica, backend.Hit{Key: group[0].Key, Limit: group[0].Limit, N: 1})[0]
	require.False(t, denial.Allowed)
	return denial
}

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
			dayLimit := newLimit(t, limit.Spec{Requests: 2, Unit: limit.Day, ChargeDenied: true})
			scriptLimit := newLimit(t, limit.Spec{Requests: 2, Unit: limit.Day}) // on the same counters
			secondLimit := newLimit(t, limit.Spec{Requests: 1000, Unit: limit.Second, ChargeDenied: true})

			require.True(t, take(denyingReplica, hit("spent", dayLimit, 2))[0].Allowed)
			denial := take(denyingReplica, hit("spent", dayLimit, 1))[0]
			require.False(t, denial.Allowed)
			assert.False(t, denial.DenialMayEndEarly, "no group was charged")

			group := []backend.Hit{hit("shared", dayLimit, 2), hit(keyInOtherPartition(denyingReplica, "shared", dayLimit, secondLimit), secondLimit, 1)}
			for i := range group {
				group[i].AllOrNone = true
			}
			require.True(t, take(chargingReplica, group...)[0].Allowed)
			denial = take(denyingReplica, hit("shared", dayLimit, 1))[0]
			require.False(t, denial.Allowed)
			assert.True(t, denial.DenialMayEndEarly, "the group may be refunded")
			assert.True(t, take(denyingReplica, hit("shared", scriptLimit, 1))[0].DenialMayEndEarly)
			assert.False(t, take(denyingReplica, hit("spent", scriptLimit, 1))[0].DenialMayEndEarly, "the script knows that the group is on another counter")

			for _, lim := range []*limit.Limit{dayLimit, scriptLimit} {
				polltest.Until(t, 10*time.Second, func() bool { return !take(denyingReplica, hit("shared", lim, 1))[0].DenialMayEndEarly })
			}
		})
	}
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

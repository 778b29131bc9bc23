package main

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// waitForSubscribers waits until n replicas have subscribed to resets.
func waitForSubscribers(t *testing.T, redis *redistest.Server, n int64) {
	t.Helper()
	polltest.Until(t, maxWait, func() bool {
		return redis.Client(t).PubSubNumSub(t.Context(), "rls:resets").Val()["rls:resets"] == n
	})
}

// waitForAdmission waits until tenant acme is admitted.
func (r *testService) waitForAdmission() {
	r.t.Helper()
	polltest.Until(r.t, maxWait, func() bool {
		_, _, code := rls(r.t, "hit", "-a", r.grpc, "-d", "shop", "tenant=acme")
		return code == 0
	})
}

func TestResetInvalidatesCachesOfAllReplicas(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	replicas := startReplicas(t, 2, redis, perYear(5))
	waitForSubscribers(t, redis, 2)
	for _, replica := range replicas {
		_, _, code := rls(t, "hit", "-a", replica.grpc, "-d", "shop", "tenant=acme", "-n", "8")
		require.Equal(t, 2, code, "over the limit, and cached")
	}
	code, answer := replicas[0].admin(http.MethodGet, "counters", "shop|tenant=acme", "")
	assert.Equal(t, http.StatusOK, code)
	assert.Contains(t, answer, `"remaining": 0`)
	code, answer = replicas[0].admin(http.MethodDelete, "counters", "shop|tenant=acme", "")
	assert.Equal(t, http.StatusOK, code)
	assert.Contains(t, answer, `"published": true`)
	replicas[0].waitForAdmission()
	assert.Contains(t, replicas[0].peek(), "remaining 4")
	replicas[1].waitForAdmission()
	assert.Contains(t, replicas[1].peek(), "remaining 3")
	assert.Equal(t, 1, replicas[0].count("msg=audit action=reset by=tester"))
}

// TestReconnectDropsCachesAfterMissedReset resets a counter without a message, as if the
// message got lost.
func TestReconnectDropsCachesAfterMissedReset(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	replica := startReplicas(t, 1, redis, perYear(5))[0]
	waitForSubscribers(t, redis, 1)
	var end time.Time // the end of the denial that the replica remembers
	polltest.Until(t, maxWait, func() bool {
		_, _, code := rls(t, "hit", "-a", replica.grpc, "-d", "shop", "tenant=acme", "-n", "8")
		require.Equal(t, 2, code)
		now := time.Now()
		_, text := replica.admin(http.MethodGet, "counters", "shop|tenant=acme", "")
		var counter admin.Counter
		require.NoError(t, json.Unmarshal([]byte(text), &counter))
		d := counter.Limits[0].CachedDenial
		if d == nil {
			return false
		}
		end = now.Add(time.Duration(d.EndsInSeconds * float64(time.Second)))
		return d.EndsInSeconds > 6 // the replica remembers a denial for longer each time
	})
	client := redis.Client(t)
	require.NoError(t, client.Del(t.Context(), client.Keys(t.Context(), "*acme*").Val()...).Err())
	_, _, code := rls(t, "hit", "-a", replica.grpc, "-d", "shop", "tenant=acme")
	require.Equal(t, 2, code, "the denial is cached")
	require.NoError(t, client.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err())
	replica.waitForAdmission()
	assert.True(t, time.Now().Before(end), "the denial has not ended by itself")
}

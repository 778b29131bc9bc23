package overrides_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/source/changes"
	"github.com/seed-81f232ab/rls/internal/source/overrides"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

func TestReadsResumeAfterRestartOfRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	replica := startReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: server.Addr}), Resync: 500 * time.Millisecond})
	_, _, err := replica.Put(t.Context(), "a", "1")
	require.NoError(t, err)

	server.Kill()
	replica.await(func() bool { return len(replica.outageChanges()) > 0 })
	_, _, err = replica.Put(t.Context(), "b", "2")
	require.Error(t, err)
	assert.Equal(t, values{"a": "1"}, replica.currentOverrides(), "the last overrides stay in force")

	server.Restart(t)
	replica.awaitOverrides(values{}) // Redis restarts without data
	_, _, err = replica.Put(t.Context(), "b", "2")
	require.NoError(t, err)
	assert.Equal(t, values{"b": "2"}, replica.currentOverrides())
	replica.await(func() bool { return len(replica.outageChanges()) == 2 })
	states := replica.outageChanges()
	require.ErrorContains(t, states[0], server.Addr)
	assert.NoError(t, states[1])
}

func TestOverridesAreReadIfRedisComesUpAfterStart(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Kill()
	replica := newReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: server.Addr}), Resync: 500 * time.Millisecond})
	replica.start()
	replica.await(func() bool { return len(replica.outageChanges()) > 0 })
	_, _, err := replica.Put(t.Context(), "a", "1")
	require.ErrorIs(t, err, changes.ErrNotSent, "nobody listens")
	assert.Zero(t, replica.applyCount())
	server.Restart(t)
	replica.awaitOverrides(values{})
}

func TestPutAppliesNothingBeforeFirstFullRead(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	require.NoError(t, client.HSet(t.Context(), "rls:overrides", "a", "1").Err())
	require.NoError(t, client.Do(t.Context(), "ACL", "SETUSER", "default", "-hgetall").Err())
	replica := newReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: server.Addr}), Resync: noResync})
	replica.start()
	replica.await(func() bool { return len(replica.outageChanges()) > 0 })
	_, _, err := replica.Put(t.Context(), "b", "2")
	require.NoError(t, err)
	assert.Zero(t, replica.applyCount(), "overrides are applied only after all of them were read")

	require.NoError(t, client.Do(t.Context(), "ACL", "SETUSER", "default", "+hgetall").Err())
	_, _, err = replica.Put(t.Context(), "b", "3")
	require.NoError(t, err)
	assert.Equal(t, values{"a": "1", "b": "3"}, replica.currentOverrides())
}

func TestReadsResumeAfterRedisWasPaused(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := connectWithin(t, redis.Server{URL: server.Addr}, time.Second)
	replica := startReplica(t, overrides.Options{Client: client, Resync: 500 * time.Millisecond})
	awaitSubscriptions(t, "rls:overrides", 1, server.Client(t))
	server.Pause()
	defer server.Resume()
	replica.await(func() bool {
		return len(replica.outageChanges()) > 0 && strings.Contains(replica.logText(), "silent for too long")
	})
	server.Resume()
	replica.await(func() bool { return len(replica.outageChanges()) == 2 })
	assert.NoError(t, replica.outageChanges()[1])
	_, _, err := replica.Put(t.Context(), "a", "1")
	require.NoError(t, err)
	assert.Equal(t, values{"a": "1"}, replica.currentOverrides())
}

func TestSilentSubscriptionThatAnswersPingsIsKept(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t) // a server without other subscribers
	client := server.Client(t)
	startReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: server.Addr}), Resync: 50 * time.Millisecond})
	subscriber := func() (id string) {
		list, err := client.Do(t.Context(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
		require.NoError(t, err)
		if list != "" {
			id = strings.Fields(list)[0]
		}
		return id
	}
	// On a busy machine, some pings can time out.
	polltest.Until(t, timeout, func() bool {
		firstID := subscriber()
		awaitCalls(t, client, "ping", 2) // the first ping was answered
		return firstID != "" && subscriber() == firstID
	})
}

func TestKilledSubscriptionIsRenewedWithFullRead(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	replica := startReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: server.Addr}), Resync: noResync})
	awaitSettled(t, client, "", replica)
	for _, value := range []string{"1", "2", "3"} {
		_, err := client.TxPipelined(t.Context(), func(p goredis.Pipeliner) error {
			p.ClientKillByFilter(t.Context(), "TYPE", "pubsub")
			p.HSet(t.Context(), "rls:overrides", "a", value)
			return nil
		})
		require.NoError(t, err)
		replica.awaitOverrides(values{"a": value})
		awaitSettled(t, client, "", replica)
	}
	require.NoError(t, client.HSet(t.Context(), "rls:overrides", "a", "4").Err())
	require.NoError(t, client.Publish(t.Context(), "rls:overrides", "a").Err())
	replica.awaitOverrides(values{"a": "4"})
	assert.Empty(t, replica.outageChanges(), "Redis was never down for reads")
}

func TestOverridesThatVanishWithTheDataOfRedisAreLost(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	o := overrides.Options{Client: connect(t, redis.Server{URL: server.Addr}), Resync: 300 * time.Millisecond}
	firstReplica, otherReplica := startReplica(t, o), startReplica(t, o)
	put := func(target string) {
		t.Helper()
		_, _, err := firstReplica.Put(t.Context(), target, "1")
		require.NoError(t, err)
	}
	lossCount := func(r *replica) (n int) { r.withLock(func() { n = r.lost }); return n }
	put("a")
	put("b")
	_, _, err := firstReplica.Delete(t.Context(), "a")
	require.NoError(t, err)
	_, _, err = otherReplica.Delete(t.Context(), "b")
	require.NoError(t, err)
	firstReplica.awaitOverrides(values{})
	put("a")
	otherReplica.awaitOverrides(values{"a": "1"})
	assert.Zero(t, lossCount(firstReplica)+lossCount(otherReplica), "the last override was deleted")

	require.NoError(t, client.FlushAll(t.Context()).Err())
	firstReplica.awaitOverrides(values{})
	otherReplica.awaitOverrides(values{})
	assert.Equal(t, []int{1, 1}, []int{lossCount(firstReplica), lossCount(otherReplica)})
	assert.Contains(t, firstReplica.logText(), `level=ERROR msg="overrides lost; Redis lost its data" overrides_before=1 overrides=0 lost="a 1"`)

	put("a")
	put("c")
	otherReplica.awaitOverrides(values{"a": "1", "c": "1"})
	require.NoError(t, client.FlushAll(t.Context()).Err())
	put("b") // before the next read
	otherReplica.awaitOverrides(values{"b": "1"})
	firstReplica.awaitOverrides(values{"b": "1"})
	polltest.Until(t, timeout, func() bool { return lossCount(firstReplica) == 2 && lossCount(otherReplica) == 2 })
}

func TestKeyOfAnotherTypeKeepsLastOverrides(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	client := db.Client(t)
	replica := startReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix, Resync: 50 * time.Millisecond})
	_, _, err := replica.Put(t.Context(), "a", "1")
	require.NoError(t, err)
	require.NoError(t, client.Set(t.Context(), db.Prefix+"rls:overrides", "mine", 0).Err())
	replica.await(func() bool { return len(replica.outageChanges()) > 0 })
	assert.ErrorContains(t, replica.outageChanges()[0], db.Prefix+"rls:overrides in Redis has another type, want a hash")
	for range 2 {
		_, _, err = replica.Put(t.Context(), "a", "2")
		require.ErrorContains(t, err, "want a hash")
		_, _, err = replica.Delete(t.Context(), "b")
		require.ErrorContains(t, err, "want a hash")
	}
	require.NoError(t, client.Publish(t.Context(), db.Prefix+"rls:overrides", "a").Err())
	assert.Equal(t, values{"a": "1"}, replica.currentOverrides(), "the last overrides stay")
	require.NoError(t, client.Del(t.Context(), db.Prefix+"rls:overrides").Err())
	replica.awaitOverrides(values{})
	replica.await(func() bool { return len(replica.outageChanges()) == 2 })
	assert.NoError(t, replica.outageChanges()[1])
}

func TestWithoutChannelRightsChangesAreFoundByResync(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	require.NoError(t, server.Client(t).Do(t.Context(), "ACL", "SETUSER", "rls", "on", ">secret-1", "~*", "resetchannels", "+@all").Err())
	o := overrides.Options{Client: connect(t, redis.Server{URL: server.Addr, Auth: "rls:secret-1"}), Resync: 200 * time.Millisecond}
	firstReplica, secondReplica := startReplica(t, o), startReplica(t, o)
	_, _, err := firstReplica.Put(t.Context(), "a", "1")
	require.NoError(t, err)
	assert.Equal(t, values{"a": "1"}, firstReplica.currentOverrides())
	secondReplica.awaitOverrides(values{"a": "1"})
	assert.Contains(t, firstReplica.logText(), "other replicas not notified")
	assert.ErrorContains(t, firstReplica.PublishReset(t.Context(), "c"), "NOPERM")
	awaitCalls(t, server.Client(t), "subscribe", 6)
	for _, r := range []*replica{firstReplica, secondReplica} {
		r.await(func() bool { return strings.Contains(r.logText(), "override subscription lost") })
		assert.Contains(t, r.logText(), "NOPERM")
		assert.Empty(t, r.outageChanges())
		assert.Equal(t, 1, strings.Count(r.logText(), "override subscription lost"), r.logText())
	}
	assert.NotContains(t, firstReplica.logText()+secondReplica.logText(), "secret")
}

func TestDocumentedRightsAreEnough(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	setUser := []any{"ACL", "SETUSER", "rls", "on", ">secret-1"}
	for right := range strings.FieldsSeq("resetkeys ~p:* resetchannels &p:rls:* -@all +ping +hello +evalsha +eval +hgetall +hget +hset +hdel +lpush +lindex +ltrim +lrange +pexpire +time +publish +subscribe") {
		setUser = append(setUser, right)
	}
	require.NoError(t, server.Client(t).Do(t.Context(), setUser...).Err())
	replica := startReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: server.Addr, Auth: "rls:secret-1"}), Prefix: "p:", Resync: 50 * time.Millisecond, IsExpired: isExpired, Report: func() changes.Replica { return changes.Replica{Name: "a"} }})
	awaitSubscriptions(t, "p:rls:overrides", 1, server.Client(t))
	polltest.Until(t, timeout, func() bool { return len(replica.LastReports().Replicas) == 1 })
	_, _, err := replica.Put(t.Context(), "a", "expired")
	require.NoError(t, err)
	replica.awaitOverrides(values{})
	require.NoError(t, replica.PublishReset(t.Context(), "c"))
	assert.NotContains(t, replica.logText(), "NOPERM")
	assert.Empty(t, replica.outageChanges())
}

func isExpired(value string, _ time.Time) bool { return value == "expired" }

func TestExpiredOverridesAreDeletedWhileSeveralReplicasRun(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	o := overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix, Resync: 20 * time.Millisecond, IsExpired: isExpired}
	replicas := []*replica{startReplica(t, o), startReplica(t, o), startReplica(t, o)}
	client := db.Client(t)
	for range 10 {
		require.NoError(t, client.HSet(t.Context(), db.Prefix+"rls:overrides", "a", "expired", "b", "1", "c", "expired").Err())
		for _, replica := range replicas {
			replica.awaitOverrides(values{"b": "1"})
		}
		polltest.Until(t, timeout, func() bool {
			return maps.Equal(values{"b": "1"}, storedValues(client, db.Prefix))
		})
	}
	for _, replica := range replicas {
		assert.NotContains(t, replica.logText(), "expired overrides not deleted")
	}
}

func TestOverrideIsKeptUnlessBothClocksSayExpired(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	o := overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix, Resync: 20 * time.Millisecond}
	var checks atomic.Int64
	o.IsExpired = func(string, time.Time) bool { return checks.Add(1)%2 == 1 } // odd calls: the clock of this process; even calls: the clock of Redis
	replica := startReplica(t, o)
	require.NoError(t, db.Client(t).HSet(t.Context(), db.Prefix+"rls:overrides", "a", "1").Err())
	replica.awaitOverrides(values{"a": "1"})
	polltest.Until(t, timeout, func() bool { return checks.Load() > 4 })
	assert.Equal(t, values{"a": "1"}, storedValues(db.Client(t), db.Prefix))
}

func TestNewValueSurvivesDeletionOfExpiredOne(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		command string // the test puts the new value just before the deletion sends this command
	}{
		{"before the clock of Redis is read", "time"},
		{"after the clock of Redis is read", "evalsha"},
	} {
		t.Run(test.name, func(t *testing.T) {
			db := redistest.Open(t)
			otherReplica := newReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix})
			_, _, err := otherReplica.Put(t.Context(), "a", "expired")
			require.NoError(t, err)
			_, _, err = otherReplica.Put(t.Context(), "b", "expired")
			require.NoError(t, err)

			var hasPut atomic.Bool
			client := connect(t, redis.Server{URL: db.Addr})
			client.AddHook(commandHook{test.command, func() {
				if hasPut.CompareAndSwap(false, true) {
					_, _, err := otherReplica.Put(context.Background(), "a", "new")
					assert.NoError(t, err)
				}
			}})
			replica := newReplica(t, overrides.Options{Client: client, Prefix: db.Prefix, Resync: 20 * time.Millisecond, IsExpired: isExpired})
			replica.start()
			replica.awaitOverrides(values{"a": "new"})
			require.True(t, hasPut.Load())
			assert.Equal(t, values{"a": "new"}, storedValues(db.Client(t), db.Prefix))
			assert.NotContains(t, replica.logText(), "expired overrides not deleted")
		})
	}
}

// commandHook calls f before each command with the name command.
type commandHook struct {
	command string
	f       func()
}

func (h commandHook) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (h commandHook) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		h.call(cmd)
		return next(ctx, cmd)
	}
}

func (h commandHook) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		h.call(cmds...)
		return next(ctx, cmds)
	}
}

func (h commandHook) call(cmds ...goredis.Cmder) {
	for _, cmd := range cmds {
		if cmd.Name() == h.command {
			h.f()
		}
	}
}

func TestExpiredOverridesThatCannotBeDeletedAreAppliedAndLoggedOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	require.NoError(t, client.HSet(t.Context(), "rls:overrides", "a", "expired").Err())
	require.NoError(t, client.Do(t.Context(), "ACL", "SETUSER", "default", "-evalsha").Err())
	replica := newReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: server.Addr}), Resync: 20 * time.Millisecond, IsExpired: isExpired})
	replica.start()
	replica.awaitOverrides(values{"a": "expired"})
	awaitCalls(t, client, "hgetall", 4)
	assert.Equal(t, 1, strings.Count(replica.logText(), "expired overrides not deleted"), replica.logText())
	assert.Empty(t, replica.outageChanges())
}

func TestOverridesAndResetsWorkInCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, false)
	server := redis.Server{Kind: redis.Cluster, URL: cluster.URL()}
	var replicas []*replica
	for range 3 {
		replicas = append(replicas, startReplica(t, overrides.Options{Client: connect(t, server), Prefix: "p:", Resync: 500 * time.Millisecond, IsExpired: isExpired}))
	}
	awaitAll := func(want values) {
		t.Helper()
		for _, replica := range replicas {
			replica.awaitOverrides(want)
		}
	}
	_, _, err := replicas[0].Put(t.Context(), "a", "1")
	require.NoError(t, err)
	assert.Equal(t, values{"a": "1"}, replicas[0].currentOverrides())
	awaitAll(values{"a": "1"})
	oldValue, hadValue, err := replicas[1].Put(t.Context(), "b", "expired")
	require.NoError(t, err)
	assert.Empty(t, oldValue)
	assert.False(t, hadValue)
	awaitAll(values{"a": "1"}) // without the expired override
	var nodes []*goredis.Client
	for _, s := range cluster.Masters {
		nodes = append(nodes, s.Client(t))
	}
	awaitSubscriptions(t, "p:rls:resets", 3, nodes...)
	require.NoError(t, replicas[2].PublishReset(t.Context(), "counter"))
	for _, replica := range replicas {
		replica.await(func() (isReceived bool) {
			replica.withLock(func() { isReceived = len(replica.resets) == 1 })
			return isReceived
		})
	}

	// The hash moves to another node.
	slot := int(cluster.Client(t).ClusterKeySlot(t.Context(), "p:rls:overrides").Val())
	node := slot * 3 / 16384
	cluster.Migrate(t, slot, cluster.Masters[node], cluster.Masters[(node+1)%3], func() {})
	oldValue, hadValue, err = replicas[2].Delete(t.Context(), "a")
	require.NoError(t, err)
	assert.Equal(t, "1", oldValue)
	assert.True(t, hadValue)
	awaitAll(values{})
	for _, replica := range replicas {
		assert.Empty(t, replica.outageChanges())
	}
}

func TestOverridesSurviveFailoverOfCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, true)
	replica := startReplica(t, overrides.Options{Client: connect(t, redis.Server{Kind: redis.Cluster, URL: cluster.URL()}), Resync: 500 * time.Millisecond})
	requireFailover(t, replica, cluster.Masters[int(cluster.Client(t).ClusterKeySlot(t.Context(), "rls:overrides").Val())*3/16384])
}

func TestOverridesSurviveFailoverOfSentinel(t *testing.T) {
	t.Parallel()
	sentinels := redistest.StartSentinels(t)
	replica := startReplica(t, overrides.Options{Client: connect(t, redis.Server{Kind: redis.Sentinel, URL: sentinels.URL()}), Resync: 500 * time.Millisecond})
	requireFailover(t, replica, sentinels.Master)
}

// requireFailover kills master, which has the hash, and requires that r still reads and writes overrides.
func requireFailover(t *testing.T, r *replica, master *redistest.Server) {
	_, _, err := r.Put(t.Context(), "a", "1")
	require.NoError(t, err)
	master.AwaitReplica(t)
	master.Kill()
	r.await(func() bool {
		_, _, err := r.Put(context.Background(), "b", "2")
		return err == nil
	})
	r.awaitOverrides(values{"a": "1", "b": "2"})
	r.await(func() bool { n := len(r.outageChanges()); return n%2 == 0 })
	for i, err := range r.outageChanges() {
		assert.Equal(t, i%2 == 1, err == nil, "an outage and its end alternate")
		assert.False(t, errors.Is(err, context.Canceled))
	}
}

func TestErrorOfFailedPutNamesTheCause(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	replica := startReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: server.Addr}), Resync: 50 * time.Millisecond})
	for _, step := range []struct {
		command, want string
	}{
		{"ACL SETUSER default -hset", "can't run this command"},
		{"ACL SETUSER default +hset -hget", "can't run this command"},
		{"ACL SETUSER default +hget -evalsha", "NOPERM"},
		{"ACL SETUSER default +evalsha", ""},
		{"CONFIG SET maxmemory 1", "OOM"},
		{"CONFIG SET maxmemory 0", ""},
		{"REPLICAOF 127.0.0.1 1", "READONLY"},
		{"REPLICAOF NO ONE", ""},
	} {
		var args []any
		for arg := range strings.FieldsSeq(step.command) {
			args = append(args, arg)
		}
		require.NoError(t, client.Do(t.Context(), args...).Err())
		_, _, err := replica.Put(t.Context(), "a", "1")
		if step.want == "" {
			require.NoError(t, err, step.command)
			continue
		}
		require.ErrorContains(t, err, step.want, step.command)
	}
	assert.Empty(t, replica.outageChanges(), "Redis was never down for reads")
}

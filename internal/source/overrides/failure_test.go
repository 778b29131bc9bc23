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
	s := redistest.Start(t)
	r := startReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: s.Addr}), Resync: 500 * time.Millisecond})
	_, _, err := r.Put(t.Context(), "a", "1")
	require.NoError(t, err)

	s.Kill()
	r.await(func() bool { return len(r.outageChanges()) > 0 })
	_, _, err = r.Put(t.Context(), "b", "2")
	require.Error(t, err)
	assert.Equal(t, values{"a": "1"}, r.current(), "the last overrides stay in force")

	s.Restart(t)
	r.awaitOverrides(values{}) // Redis restarts without data
	_, _, err = r.Put(t.Context(), "b", "2")
	require.NoError(t, err)
	assert.Equal(t, values{"b": "2"}, r.current())
	r.await(func() bool { return len(r.outageChanges()) == 2 })
	states := r.outageChanges()
	require.ErrorContains(t, states[0], s.Addr)
	assert.NoError(t, states[1])
}

func TestOverridesAreReadIfRedisComesUpAfterStart(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Kill()
	r := newReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: s.Addr}), Resync: 500 * time.Millisecond})
	r.start()
	r.await(func() bool { return len(r.outageChanges()) > 0 })
	_, _, err := r.Put(t.Context(), "a", "1")
	require.Error(t, err)
	assert.Zero(t, r.applyCount())
	s.Restart(t)
	r.awaitOverrides(values{})
}

func TestPutAppliesNothingBeforeFirstFullRead(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := s.Client(t)
	require.NoError(t, c.HSet(t.Context(), "rls:overrides", "a", "1").Err())
	require.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "default", "-hgetall").Err())
	r := newReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: s.Addr}), Resync: noResync})
	r.start()
	r.await(func() bool { return len(r.outageChanges()) > 0 })
	_, _, err := r.Put(t.Context(), "b", "2")
	require.NoError(t, err)
	assert.Zero(t, r.applyCount(), "overrides are applied only after all of them were read")

	require.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "default", "+hgetall").Err())
	_, _, err = r.Put(t.Context(), "b", "3")
	require.NoError(t, err)
	assert.Equal(t, values{"a": "1", "b": "3"}, r.current())
}

func TestReadsResumeAfterRedisWasPaused(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	client := connectWithin(t, redis.Server{URL: s.Addr}, time.Second)
	r := startReplica(t, overrides.Options{Client: client, Resync: 500 * time.Millisecond})
	awaitSubscriptions(t, "rls:overrides", 1, s.Client(t))
	s.Pause()
	defer s.Resume()
	r.await(func() bool { return len(r.outageChanges()) > 0 && strings.Contains(r.logText(), "silent for too long") })
	s.Resume()
	r.await(func() bool { return len(r.outageChanges()) == 2 })
	assert.NoError(t, r.outageChanges()[1])
	_, _, err := r.Put(t.Context(), "a", "1")
	require.NoError(t, err)
	assert.Equal(t, values{"a": "1"}, r.current())
}

func TestSilentSubscriptionThatAnswersPingsIsKept(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t) // a server without other subscribers
	c := s.Client(t)
	startReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: s.Addr}), Resync: 50 * time.Millisecond})
	subscriber := func() (id string) {
		list, err := c.Do(t.Context(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
		require.NoError(t, err)
		if list != "" {
			id = strings.Fields(list)[0]
		}
		return id
	}
	// On a busy machine, some pings can time out.
	polltest.Until(t, timeout, func() bool {
		firstID := subscriber()
		awaitCalls(t, c, "ping", 2) // the first ping was answered
		return firstID != "" && subscriber() == firstID
	})
}

func TestKilledSubscriptionIsRenewedWithFullRead(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := s.Client(t)
	r := startReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: s.Addr}), Resync: noResync})
	awaitSettled(t, c, "", r)
	for _, value := range []string{"1", "2", "3"} {
		_, err := c.TxPipelined(t.Context(), func(p goredis.Pipeliner) error {
			p.ClientKillByFilter(t.Context(), "TYPE", "pubsub")
			p.HSet(t.Context(), "rls:overrides", "a", value)
			return nil
		})
		require.NoError(t, err)
		r.awaitOverrides(values{"a": value})
		awaitSettled(t, c, "", r)
	}
	require.NoError(t, c.HSet(t.Context(), "rls:overrides", "a", "4").Err())
	require.NoError(t, c.Publish(t.Context(), "rls:overrides", "a").Err())
	r.awaitOverrides(values{"a": "4"})
	assert.Empty(t, r.outageChanges(), "Redis was never down for reads")
}

func TestOverridesThatVanishWithTheDataOfRedisAreLost(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := s.Client(t)
	o := overrides.Options{Client: connect(t, redis.Server{URL: s.Addr}), Resync: 300 * time.Millisecond}
	r, otherReplica := startReplica(t, o), startReplica(t, o)
	put := func(target string) {
		t.Helper()
		_, _, err := r.Put(t.Context(), target, "1")
		require.NoError(t, err)
	}
	lossCount := func(r *replica) (n int) { r.withLock(func() { n = r.lost }); return n }
	put("a")
	put("b")
	_, _, err := r.Delete(t.Context(), "a")
	require.NoError(t, err)
	_, _, err = otherReplica.Delete(t.Context(), "b")
	require.NoError(t, err)
	r.awaitOverrides(values{})
	put("a")
	otherReplica.awaitOverrides(values{"a": "1"})
	assert.Zero(t, lossCount(r)+lossCount(otherReplica), "the last override was deleted")

	require.NoError(t, c.FlushAll(t.Context()).Err())
	r.awaitOverrides(values{})
	otherReplica.awaitOverrides(values{})
	assert.Equal(t, []int{1, 1}, []int{lossCount(r), lossCount(otherReplica)})
	assert.Contains(t, r.logText(), `level=ERROR msg="overrides lost; Redis lost its data" overrides_before=1 overrides=0`)

	put("a")
	put("c")
	otherReplica.awaitOverrides(values{"a": "1", "c": "1"})
	require.NoError(t, c.FlushAll(t.Context()).Err())
	put("b") // before the next read
	otherReplica.awaitOverrides(values{"b": "1"})
	r.awaitOverrides(values{"b": "1"})
	polltest.Until(t, timeout, func() bool { return lossCount(r) == 2 && lossCount(otherReplica) == 2 })
}

func TestKeyOfAnotherTypeKeepsLastOverrides(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	c := db.Client(t)
	r := startReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix, Resync: 50 * time.Millisecond})
	_, _, err := r.Put(t.Context(), "a", "1")
	require.NoError(t, err)
	require.NoError(t, c.Set(t.Context(), db.Prefix+"rls:overrides", "mine", 0).Err())
	r.await(func() bool { return len(r.outageChanges()) > 0 })
	assert.ErrorContains(t, r.outageChanges()[0], db.Prefix+"rls:overrides in Redis has another type, want a hash")
	for range 2 {
		_, _, err = r.Put(t.Context(), "a", "2")
		require.ErrorContains(t, err, "want a hash")
		_, _, err = r.Delete(t.Context(), "b")
		require.ErrorContains(t, err, "want a hash")
	}
	require.NoError(t, c.Publish(t.Context(), db.Prefix+"rls:overrides", "a").Err())
	assert.Equal(t, values{"a": "1"}, r.current(), "the last overrides stay")
	require.NoError(t, c.Del(t.Context(), db.Prefix+"rls:overrides").Err())
	r.awaitOverrides(values{})
	r.await(func() bool { return len(r.outageChanges()) == 2 })
	assert.NoError(t, r.outageChanges()[1])
}

func TestWithoutChannelRightsChangesAreFoundByResync(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	require.NoError(t, s.Client(t).Do(t.Context(), "ACL", "SETUSER", "rls", "on", ">secret-1", "~*", "resetchannels", "+@all").Err())
	o := overrides.Options{Client: connect(t, redis.Server{URL: s.Addr, Auth: "rls:secret-1"}), Resync: 200 * time.Millisecond}
	a, b := startReplica(t, o), startReplica(t, o)
	_, _, err := a.Put(t.Context(), "a", "1")
	require.NoError(t, err)
	assert.Equal(t, values{"a": "1"}, a.current())
	b.awaitOverrides(values{"a": "1"})
	assert.Contains(t, a.logText(), "other replicas not notified")
	assert.ErrorContains(t, a.PublishReset(t.Context(), "c"), "NOPERM")
	awaitCalls(t, s.Client(t), "subscribe", 6)
	for _, r := range []*replica{a, b} {
		r.await(func() bool { return strings.Contains(r.logText(), "override subscription lost") })
		assert.Contains(t, r.logText(), "NOPERM")
		assert.Empty(t, r.outageChanges())
		assert.Equal(t, 1, strings.Count(r.logText(), "override subscription lost"), r.logText())
	}
	assert.NotContains(t, a.logText()+b.logText(), "secret")
}

func TestDocumentedRightsAreEnough(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	setUser := []any{"ACL", "SETUSER", "rls", "on", ">secret-1"}
	for right := range strings.FieldsSeq("resetkeys ~p:* resetchannels &p:rls:* -@all +ping +hello +evalsha +eval +hgetall +hget +hset +hdel +lpush +lindex +ltrim +lrange +pexpire +time +publish +subscribe") {
		setUser = append(setUser, right)
	}
	require.NoError(t, s.Client(t).Do(t.Context(), setUser...).Err())
	r := startReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: s.Addr, Auth: "rls:secret-1"}), Prefix: "p:", Resync: 50 * time.Millisecond, IsExpired: isExpired, Report: func() changes.Replica { return changes.Replica{Name: "a"} }})
	awaitSubscriptions(t, "p:rls:overrides", 1, s.Client(t))
	polltest.Until(t, timeout, func() bool { return len(r.LastReports().Replicas) == 1 })
	_, _, err := r.Put(t.Context(), "a", "expired")
	require.NoError(t, err)
	r.awaitOverrides(values{})
	require.NoError(t, r.PublishReset(t.Context(), "c"))
	assert.NotContains(t, r.logText(), "NOPERM")
	assert.Empty(t, r.outageChanges())
}

func isExpired(value string, _ time.Time) bool { return value == "expired" }

func TestExpiredOverridesAreDeletedWhileSeveralReplicasRun(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	o := overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix, Resync: 20 * time.Millisecond, IsExpired: isExpired}
	replicas := []*replica{startReplica(t, o), startReplica(t, o), startReplica(t, o)}
	c := db.Client(t)
	for range 10 {
		require.NoError(t, c.HSet(t.Context(), db.Prefix+"rls:overrides", "a", "expired", "b", "1", "c", "expired").Err())
		for _, r := range replicas {
			r.awaitOverrides(values{"b": "1"})
		}
		polltest.Until(t, timeout, func() bool {
			return maps.Equal(values{"b": "1"}, storedValues(c, db.Prefix))
		})
	}
	for _, r := range replicas {
		assert.NotContains(t, r.logText(), "expired overrides not deleted")
	}
}

func TestOverrideIsKeptUnlessBothClocksSayExpired(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	o := overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix, Resync: 20 * time.Millisecond}
	var checks atomic.Int64
	o.IsExpired = func(string, time.Time) bool { return checks.Add(1)%2 == 1 } // odd calls: the clock of this process; even calls: the clock of Redis
	r := startReplica(t, o)
	require.NoError(t, db.Client(t).HSet(t.Context(), db.Prefix+"rls:overrides", "a", "1").Err())
	r.awaitOverrides(values{"a": "1"})
	polltest.Until(t, timeout, func() bool { return checks.Load() > 4 })
	assert.Equal(t, values{"a": "1"}, storedValues(db.Client(t), db.Prefix))
}

func TestNewValueSurvivesDeletionOfExpiredOne(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		command string // the test puts the new value just before the deletion sends this command
	}{
		{"before the clock of Redis is read", "time"},
		{"after the clock of Redis is read", "evalsha"},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := redistest.Open(t)
			otherReplica := newReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix})
			_, _, err := otherReplica.Put(t.Context(), "a", "expired")
			require.NoError(t, err)
			_, _, err = otherReplica.Put(t.Context(), "b", "expired")
			require.NoError(t, err)

			var hasPut atomic.Bool
			client := connect(t, redis.Server{URL: db.Addr})
			client.AddHook(commandHook{c.command, func() {
				if hasPut.CompareAndSwap(false, true) {
					_, _, err := otherReplica.Put(context.Background(), "a", "new")
					assert.NoError(t, err)
				}
			}})
			r := newReplica(t, overrides.Options{Client: client, Prefix: db.Prefix, Resync: 20 * time.Millisecond, IsExpired: isExpired})
			r.start()
			r.awaitOverrides(values{"a": "new"})
			require.True(t, hasPut.Load())
			assert.Equal(t, values{"a": "new"}, storedValues(db.Client(t), db.Prefix))
			assert.NotContains(t, r.logText(), "expired overrides not deleted")
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
	s := redistest.Start(t)
	c := s.Client(t)
	require.NoError(t, c.HSet(t.Context(), "rls:overrides", "a", "expired").Err())
	require.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "default", "-evalsha").Err())
	r := newReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: s.Addr}), Resync: 20 * time.Millisecond, IsExpired: isExpired})
	r.start()
	r.awaitOverrides(values{"a": "expired"})
	awaitCalls(t, c, "hgetall", 4)
	assert.Equal(t, 1, strings.Count(r.logText(), "expired overrides not deleted"), r.logText())
	assert.Empty(t, r.outageChanges())
}

func TestOverridesAndResetsWorkInCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, false)
	server := redis.Server{Kind: redis.Cluster, URL: c.URL()}
	var replicas []*replica
	for range 3 {
		replicas = append(replicas, startReplica(t, overrides.Options{Client: connect(t, server), Prefix: "p:", Resync: 500 * time.Millisecond, IsExpired: isExpired}))
	}
	awaitAll := func(want values) {
		t.Helper()
		for _, r := range replicas {
			r.awaitOverrides(want)
		}
	}
	_, _, err := replicas[0].Put(t.Context(), "a", "1")
	require.NoError(t, err)
	assert.Equal(t, values{"a": "1"}, replicas[0].current())
	awaitAll(values{"a": "1"})
	oldValue, hadValue, err := replicas[1].Put(t.Context(), "b", "expired")
	require.NoError(t, err)
	assert.Empty(t, oldValue)
	assert.False(t, hadValue)
	awaitAll(values{"a": "1"}) // without the expired override
	var nodes []*goredis.Client
	for _, s := range c.Masters {
		nodes = append(nodes, s.Client(t))
	}
	awaitSubscriptions(t, "p:rls:resets", 3, nodes...)
	require.NoError(t, replicas[2].PublishReset(t.Context(), "counter"))
	for _, r := range replicas {
		r.await(func() (received bool) {
			r.withLock(func() { received = len(r.resets) == 1 })
			return received
		})
	}

	// The hash moves to another node.
	slot := int(c.Client(t).ClusterKeySlot(t.Context(), "p:rls:overrides").Val())
	node := slot * 3 / 16384
	c.Migrate(t, slot, c.Masters[node], c.Masters[(node+1)%3], func() {})
	oldValue, hadValue, err = replicas[2].Delete(t.Context(), "a")
	require.NoError(t, err)
	assert.Equal(t, "1", oldValue)
	assert.True(t, hadValue)
	awaitAll(values{})
	for _, r := range replicas {
		assert.Empty(t, r.outageChanges())
	}
}

func TestOverridesSurviveFailoverOfCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, true)
	r := startReplica(t, overrides.Options{Client: connect(t, redis.Server{Kind: redis.Cluster, URL: c.URL()}), Resync: 500 * time.Millisecond})
	requireFailover(t, r, c.Masters[int(c.Client(t).ClusterKeySlot(t.Context(), "rls:overrides").Val())*3/16384])
}

func TestOverridesSurviveFailoverOfSentinel(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinels(t)
	r := startReplica(t, overrides.Options{Client: connect(t, redis.Server{Kind: redis.Sentinel, URL: s.URL()}), Resync: 500 * time.Millisecond})
	requireFailover(t, r, s.Master)
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
	s := redistest.Start(t)
	c := s.Client(t)
	r := startReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: s.Addr}), Resync: 50 * time.Millisecond})
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
		require.NoError(t, c.Do(t.Context(), args...).Err())
		_, _, err := r.Put(t.Context(), "a", "1")
		if step.want == "" {
			require.NoError(t, err, step.command)
			continue
		}
		require.ErrorContains(t, err, step.want, step.command)
	}
	assert.Empty(t, r.outageChanges(), "Redis was never down for reads")
}

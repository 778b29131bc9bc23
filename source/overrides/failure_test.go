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
	"github.com/seed-81f232ab/rls/internal/polltest"
	"github.com/seed-81f232ab/rls/internal/redistest"
	"github.com/seed-81f232ab/rls/source/overrides"
)

func TestRestartedRedisIsFollowedAgain(t *testing.T) {
	s := redistest.Start(t)
	r := follow(t, overrides.Options{Client: connect(t, redis.Server{URL: s.Addr}), Resync: 500 * time.Millisecond})
	_, _, err := r.Put(t.Context(), "a", "1")
	require.NoError(t, err)

	s.Kill()
	r.until(ample, func() bool { return len(r.told()) > 0 })
	_, _, err = r.Put(t.Context(), "b", "2")
	require.Error(t, err)
	assert.Equal(t, values{"a": "1"}, r.now(), "what it had holds on")

	s.Restart(t)
	r.sees(ample, values{}) // as Redis has lost it
	_, _, err = r.Put(t.Context(), "b", "2")
	require.NoError(t, err)
	assert.Equal(t, values{"b": "2"}, r.now())
	r.until(ample, func() bool { return len(r.told()) == 2 })
	states := r.told()
	require.ErrorContains(t, states[0], s.Addr)
	assert.NoError(t, states[1])
}

func TestRedisMayBeAbsentAtFirst(t *testing.T) {
	s := redistest.Start(t)
	s.Kill()
	r := newReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: s.Addr}), Resync: 500 * time.Millisecond})
	r.start()
	r.until(ample, func() bool { return len(r.told()) > 0 })
	_, _, err := r.Put(t.Context(), "a", "1")
	require.Error(t, err)
	assert.Zero(t, r.times())
	s.Restart(t)
	r.sees(ample, values{})
}

func TestOwnWriteIsReadEvenBeforeTheFirstFullRead(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client(t)
	require.NoError(t, c.HSet(t.Context(), "rls:overrides", "a", "1").Err())
	require.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "default", "-hgetall").Err())
	r := newReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: s.Addr}), Resync: never})
	r.start()
	r.until(ample, func() bool { return len(r.told()) > 0 })
	_, _, err := r.Put(t.Context(), "b", "2")
	require.NoError(t, err)
	assert.Zero(t, r.times(), "less than all is never applied")

	require.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "default", "+hgetall").Err())
	_, _, err = r.Put(t.Context(), "b", "3")
	require.NoError(t, err)
	assert.Equal(t, values{"a": "1", "b": "3"}, r.now())
}

func TestFrozenRedisIsFollowedAgain(t *testing.T) {
	s := redistest.Start(t)
	client := connectWithin(t, redis.Server{URL: s.Addr}, time.Second)
	r := follow(t, overrides.Options{Client: client, Resync: 500 * time.Millisecond})
	subscribed(t, "rls:overrides", 1, s.Client(t))
	s.Pause()
	defer s.Resume()
	r.until(ample, func() bool { return len(r.told()) > 0 && strings.Contains(r.logged(), "silent for too long") })
	s.Resume()
	r.until(ample, func() bool { return len(r.told()) == 2 })
	assert.NoError(t, r.told()[1])
	_, _, err := r.Put(t.Context(), "a", "1")
	require.NoError(t, err)
	assert.Equal(t, values{"a": "1"}, r.now())
}

func TestQuietSubscriptionIsKept(t *testing.T) {
	s := redistest.Start(t) // with no other subscriber
	c := s.Client(t)
	follow(t, overrides.Options{Client: connect(t, redis.Server{URL: s.Addr}), Resync: 50 * time.Millisecond})
	subscriber := func() (id string) {
		list, err := c.Do(t.Context(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
		require.NoError(t, err)
		if list != "" {
			id = strings.Fields(list)[0]
		}
		return id
	}
	// A busy machine can seem dead for a while, but not each time.
	polltest.Until(t, ample, func() bool {
		before := subscriber()
		more(t, c, "ping", 2) // it was asked for a sign of life, has given it, and is asked again
		return before != "" && subscriber() == before
	})
}

func TestKilledSubscriptionIsRenewedAndTheGapRead(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client(t)
	r := follow(t, overrides.Options{Client: connect(t, redis.Server{URL: s.Addr}), Resync: never})
	settled(t, c, "", r)
	for _, value := range []string{"1", "2", "3"} {
		_, err := c.TxPipelined(t.Context(), func(p goredis.Pipeliner) error {
			p.ClientKillByFilter(t.Context(), "TYPE", "pubsub")
			p.HSet(t.Context(), "rls:overrides", "a", value)
			return nil
		})
		require.NoError(t, err)
		r.sees(ample, values{"a": value})
		settled(t, c, "", r)
	}
	require.NoError(t, c.HSet(t.Context(), "rls:overrides", "a", "4").Err())
	require.NoError(t, c.Publish(t.Context(), "rls:overrides", "a").Err())
	r.sees(ample, values{"a": "4"})
	assert.Empty(t, r.told(), "it could be read all the time")
}

func TestForeignKey(t *testing.T) {
	db := redistest.Open(t)
	c := db.Client(t)
	r := follow(t, overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix, Resync: 50 * time.Millisecond})
	_, _, err := r.Put(t.Context(), "a", "1")
	require.NoError(t, err)
	require.NoError(t, c.Set(t.Context(), db.Prefix+"rls:overrides", "mine", 0).Err())
	r.until(ample, func() bool { return len(r.told()) > 0 })
	assert.ErrorContains(t, r.told()[0], db.Prefix+"rls:overrides in Redis should be a hash")
	for range 2 {
		_, _, err = r.Put(t.Context(), "a", "2")
		require.ErrorContains(t, err, "should be a hash")
		_, _, err = r.Delete(t.Context(), "b")
		require.ErrorContains(t, err, "should be a hash")
	}
	require.NoError(t, c.Publish(t.Context(), db.Prefix+"rls:overrides", "a").Err())
	assert.Equal(t, values{"a": "1"}, r.now(), "what it had holds on")
	require.NoError(t, c.Del(t.Context(), db.Prefix+"rls:overrides").Err())
	r.sees(ample, values{})
	r.until(ample, func() bool { return len(r.told()) == 2 })
	assert.NoError(t, r.told()[1])
}

func TestWithoutTheRightToChannelsChangesAreFoundByReading(t *testing.T) {
	s := redistest.Start(t)
	require.NoError(t, s.Client(t).Do(t.Context(), "ACL", "SETUSER", "rls", "on", ">secret-1", "~*", "resetchannels", "+@all").Err())
	o := overrides.Options{Client: connect(t, redis.Server{URL: s.Addr, Auth: "rls:secret-1"}), Resync: 200 * time.Millisecond}
	a, b := follow(t, o), follow(t, o)
	_, _, err := a.Put(t.Context(), "a", "1")
	require.NoError(t, err)
	assert.Equal(t, values{"a": "1"}, a.now())
	b.sees(ample, values{"a": "1"})
	assert.Contains(t, a.logged(), "other replicas can't be told")
	assert.ErrorContains(t, a.TellReset(t.Context(), "c"), "NOPERM")
	more(t, s.Client(t), "subscribe", 6)
	for _, r := range []*replica{a, b} {
		r.until(ample, func() bool { return strings.Contains(r.logged(), "no messages") })
		assert.Contains(t, r.logged(), "NOPERM")
		assert.Empty(t, r.told())
		assert.Equal(t, 1, strings.Count(r.logged(), "no messages"), r.logged())
	}
	assert.NotContains(t, a.logged()+b.logged(), "secret")
}

func TestTheseRightsSuffice(t *testing.T) {
	s := redistest.Start(t)
	setUser := []any{"ACL", "SETUSER", "rls", "on", ">secret-1"}
	for right := range strings.FieldsSeq("resetkeys ~p:* resetchannels &p:rls:* -@all +ping +hello +hgetall +hget +hmget +hset +hdel +time +multi +exec +watch +unwatch +publish +subscribe") {
		setUser = append(setUser, right)
	}
	require.NoError(t, s.Client(t).Do(t.Context(), setUser...).Err())
	r := follow(t, overrides.Options{Client: connect(t, redis.Server{URL: s.Addr, Auth: "rls:secret-1"}), Prefix: "p:", Resync: 50 * time.Millisecond, Expired: isOver})
	subscribed(t, "p:rls:overrides", 1, s.Client(t))
	_, _, err := r.Put(t.Context(), "a", "over")
	require.NoError(t, err)
	r.sees(ample, values{})
	require.NoError(t, r.TellReset(t.Context(), "c"))
	assert.NotContains(t, r.logged(), "NOPERM")
	assert.Empty(t, r.told())
}

func isOver(value string, _ time.Time) bool { return value == "over" }

func TestExpiredAreRemovedByWhoeverSeesThem(t *testing.T) {
	db := redistest.Open(t)
	o := overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix, Resync: 20 * time.Millisecond, Expired: isOver}
	replicas := []*replica{follow(t, o), follow(t, o), follow(t, o)}
	c := db.Client(t)
	for range 10 {
		require.NoError(t, c.HSet(t.Context(), db.Prefix+"rls:overrides", "a", "over", "b", "1", "c", "over").Err())
		for _, r := range replicas {
			r.sees(ample, values{"b": "1"})
		}
		polltest.Until(t, ample, func() bool {
			return maps.Equal(values{"b": "1"}, c.HGetAll(t.Context(), db.Prefix+"rls:overrides").Val())
		})
	}
	for _, r := range replicas {
		assert.NotContains(t, r.logged(), "can't be removed")
	}
}

func TestWhatIsOverByOneClockOnlyStays(t *testing.T) {
	db := redistest.Open(t)
	o := overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix, Resync: 20 * time.Millisecond}
	var asked atomic.Int64
	o.Expired = func(string, time.Time) bool { return asked.Add(1)%2 == 1 } // this process' clock, then that of Redis
	r := follow(t, o)
	require.NoError(t, db.Client(t).HSet(t.Context(), db.Prefix+"rls:overrides", "a", "1").Err())
	r.sees(ample, values{"a": "1"})
	polltest.Until(t, ample, func() bool { return asked.Load() > 4 })
	assert.Equal(t, values{"a": "1"}, db.Client(t).HGetAll(t.Context(), db.Prefix+"rls:overrides").Val())
}

func TestANewValueSurvivesTheRemovalOfTheOld(t *testing.T) {
	for _, c := range []struct {
		name string
		when string // the command of the removal before which the value is put
	}{
		{"before it looks again", "watch"},
		{"after it has looked again", "multi"},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := redistest.Open(t)
			other := overrides.New(overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix})
			_, _, err := other.Put(t.Context(), "a", "over")
			require.NoError(t, err)
			_, _, err = other.Put(t.Context(), "b", "over")
			require.NoError(t, err)

			var once atomic.Bool
			client := connect(t, redis.Server{URL: db.Addr})
			client.AddHook(before{c.when, func() {
				if once.CompareAndSwap(false, true) {
					_, _, err := other.Put(context.Background(), "a", "new")
					assert.NoError(t, err)
				}
			}})
			r := newReplica(t, overrides.Options{Client: client, Prefix: db.Prefix, Resync: 20 * time.Millisecond, Expired: isOver})
			r.start()
			r.sees(ample, values{"a": "new"})
			require.True(t, once.Load())
			assert.Equal(t, values{"a": "new"}, db.Client(t).HGetAll(t.Context(), db.Prefix+"rls:overrides").Val())
			assert.NotContains(t, r.logged(), "can't be removed")
		})
	}
}

// before calls do before each command of that name.
type before struct {
	name string
	do   func()
}

func (b before) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (b before) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		b.see(cmd)
		return next(ctx, cmd)
	}
}

func (b before) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		b.see(cmds...)
		return next(ctx, cmds)
	}
}

func (b before) see(cmds ...goredis.Cmder) {
	for _, cmd := range cmds {
		if cmd.Name() == b.name {
			b.do()
		}
	}
}

func TestExpiredThatCantBeRemovedAreAppliedAndLoggedOnce(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client(t)
	require.NoError(t, c.HSet(t.Context(), "rls:overrides", "a", "over").Err())
	require.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "default", "-watch").Err())
	r := newReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: s.Addr}), Resync: 20 * time.Millisecond, Expired: isOver})
	r.start()
	r.sees(ample, values{"a": "over"})
	more(t, c, "hgetall", 4)
	assert.Equal(t, 1, strings.Count(r.logged(), "can't be removed"), r.logged())
	assert.Empty(t, r.told())
}

func TestCluster(t *testing.T) {
	c := redistest.StartCluster(t, 3, false)
	server := redis.Server{Kind: redis.Cluster, URL: c.URL()}
	var replicas []*replica
	for range 3 {
		replicas = append(replicas, follow(t, overrides.Options{Client: connect(t, server), Prefix: "p:", Resync: 500 * time.Millisecond, Expired: isOver}))
	}
	all := func(within time.Duration, want values) {
		t.Helper()
		for _, r := range replicas {
			r.sees(within, want)
		}
	}
	_, _, err := replicas[0].Put(t.Context(), "a", "1")
	require.NoError(t, err)
	assert.Equal(t, values{"a": "1"}, replicas[0].now())
	all(ample, values{"a": "1"})
	old, had, err := replicas[1].Put(t.Context(), "b", "over")
	require.NoError(t, err)
	assert.Empty(t, old)
	assert.False(t, had)
	all(ample, values{"a": "1"}) // expired
	var nodes []*goredis.Client
	for _, s := range c.Masters {
		nodes = append(nodes, s.Client(t))
	}
	subscribed(t, "p:rls:resets", 3, nodes...)
	require.NoError(t, replicas[2].TellReset(t.Context(), "counter"))
	for _, r := range replicas {
		r.until(ample, func() (told bool) {
			r.locked(func() { told = len(r.resets) == 1 })
			return told
		})
	}

	// The hash moves to another node.
	slot := int(c.Client(t).ClusterKeySlot(t.Context(), "p:rls:overrides").Val())
	from := slot * 3 / 16384
	c.Migrate(t, slot, c.Masters[from], c.Masters[(from+1)%3], func() {})
	old, had, err = replicas[2].Delete(t.Context(), "a")
	require.NoError(t, err)
	assert.Equal(t, "1", old)
	assert.True(t, had)
	all(ample, values{})
	for _, r := range replicas {
		assert.Empty(t, r.told())
	}
}

func TestClusterFailover(t *testing.T) {
	c := redistest.StartCluster(t, 3, true)
	r := follow(t, overrides.Options{Client: connect(t, redis.Server{Kind: redis.Cluster, URL: c.URL()}), Resync: 500 * time.Millisecond})
	survives(t, r, c.Masters[int(c.Client(t).ClusterKeySlot(t.Context(), "rls:overrides").Val())*3/16384])
}

func TestSentinelFailover(t *testing.T) {
	s := redistest.StartSentinels(t)
	r := follow(t, overrides.Options{Client: connect(t, redis.Server{Kind: redis.Sentinel, URL: s.URL()}), Resync: 500 * time.Millisecond})
	survives(t, r, s.Master)
}

// survives demands that r, alone, goes on when master, which has the hash, dies.
func survives(t *testing.T, r *replica, master *redistest.Server) {
	_, _, err := r.Put(t.Context(), "a", "1")
	require.NoError(t, err)
	master.AwaitReplica(t)
	master.Kill()
	r.until(ample, func() bool {
		_, _, err := r.Put(context.Background(), "b", "2")
		return err == nil
	})
	r.sees(ample, values{"a": "1", "b": "2"})
	r.until(ample, func() bool { n := len(r.told()); return n%2 == 0 })
	for i, err := range r.told() {
		assert.Equal(t, i%2 == 1, err == nil, "an outage, its end, and so on")
		assert.False(t, errors.Is(err, context.Canceled))
	}
}

func TestRefusedWritesSayWhy(t *testing.T) {
	s := redistest.Start(t)
	c := s.Client(t)
	r := follow(t, overrides.Options{Client: connect(t, redis.Server{URL: s.Addr}), Resync: 50 * time.Millisecond})
	for _, step := range []struct {
		command, says string
	}{
		{"ACL SETUSER default -hset", "NOPERM"},
		{"ACL SETUSER default +hset -hget", "NOPERM"},
		{"ACL SETUSER default +hget -multi", "NOPERM"},
		{"ACL SETUSER default +multi", ""},
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
		if step.says == "" {
			require.NoError(t, err, step.command)
			continue
		}
		require.ErrorContains(t, err, step.says, step.command)
	}
	assert.Empty(t, r.told(), "it could be read all the time")
}

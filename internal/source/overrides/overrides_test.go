package overrides_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/source"
	"github.com/seed-81f232ab/rls/internal/source/overrides"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

type values = map[string]string

func TestEveryReplicaAppliesPutAndDelete(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	var replicas []*replica
	for range 3 {
		replicas = append(replicas, startReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix, Resync: noResync}))
	}
	awaitSettled(t, db.Client(t), db.Prefix, replicas...)
	for _, step := range []struct {
		replica       int
		target, value string // an empty value deletes the target
		oldValue      string
		hadValue      bool
		want          values
	}{
		{0, "a", "1", "", false, values{"a": "1"}},
		{1, "b", "2", "", false, values{"a": "1", "b": "2"}},
		{2, "a", "3", "1", true, values{"a": "3", "b": "2"}},
		{0, "b", "", "2", true, values{"a": "3"}},
		{1, "b", "", "", false, values{"a": "3"}},
		{1, "RELOAD_ALL", "4", "", false, values{"a": "3", "RELOAD_ALL": "4"}},
		{1, "\x00 \n", "5", "", false, values{"a": "3", "RELOAD_ALL": "4", "\x00 \n": "5"}},
	} {
		var oldValue string
		var hadValue bool
		var err error
		if step.value == "" {
			oldValue, hadValue, err = replicas[step.replica].Delete(t.Context(), step.target)
		} else {
			oldValue, hadValue, err = replicas[step.replica].Put(t.Context(), step.target, step.value)
		}
		require.NoError(t, err)
		assert.Equal(t, step.oldValue, oldValue)
		assert.Equal(t, step.hadValue, hadValue)
		assert.Equal(t, step.want, replicas[step.replica].currentOverrides(), "the write is applied in this replica when it returns")
		for _, replica := range replicas {
			replica.awaitOverrides(step.want)
		}
	}
}

func TestUnchangedOverridesAreNotApplied(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	replica := startReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix, Resync: 10 * time.Millisecond})
	for range 3 {
		_, _, err := replica.Put(t.Context(), "a", "1")
		require.NoError(t, err)
	}
	awaitCalls(t, db.Client(t), "hgetall", 5)
	assert.Equal(t, 2, replica.applyCount(), "one update for the empty set, and one update for the value")
}

func TestResyncFindsChangeWithoutMessage(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	replica := startReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix, Resync: 300 * time.Millisecond})
	awaitSettled(t, db.Client(t), db.Prefix, replica)
	require.NoError(t, db.Client(t).HSet(t.Context(), db.Prefix+"rls:overrides", "a", "1").Err())
	replica.awaitOverrides(values{"a": "1"})
}

func TestAnyMessageCausesFullRead(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	hash, client := db.Prefix+"rls:overrides", db.Client(t)
	replica := startReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix, Resync: noResync})
	awaitSettled(t, client, db.Prefix, replica)
	for _, step := range []struct {
		name    string
		set     values
		message string
		want    values
	}{
		{"a target", values{"a": "1", "b": "2"}, "a", values{"a": "1", "b": "2"}},
		{"a very long target", values{"c": "3"}, strings.Repeat("x", 5000), values{"a": "1", "b": "2", "c": "3"}},
		{"an unknown target", values{"a": "4"}, "nobody", values{"a": "4", "b": "2", "c": "3"}},
		{"an empty message", values{"b": "5"}, "", values{"a": "4", "b": "5", "c": "3"}},
	} {
		t.Run(step.name, func(t *testing.T) {
			if step.set != nil {
				require.NoError(t, client.HSet(t.Context(), hash, step.set).Err())
			}
			require.NoError(t, client.Publish(t.Context(), hash, step.message).Err())
			replica.awaitOverrides(step.want)
		})
	}
	require.NoError(t, client.Del(t.Context(), hash).Err())
	require.NoError(t, client.Publish(t.Context(), hash, "RELOAD_ALL").Err())
	replica.awaitOverrides(values{})
}

func TestResetsReachAllReplicas(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	o := overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix, Resync: noResync}
	a, b := startReplica(t, o), startReplica(t, o)
	awaitSubscriptions(t, db.Prefix+"rls:resets", 2, db.Client(t))
	longName := strings.Repeat("x", 1<<16)
	require.NoError(t, a.PublishReset(t.Context(), "shop|ip=1"))
	require.NoError(t, a.PublishReset(t.Context(), longName))
	for _, r := range []*replica{a, b} {
		r.await(func() (isComplete bool) {
			r.withLock(func() { isComplete = assert.ObjectsAreEqual([]string{"shop|ip=1", longName}, r.resets) })
			return isComplete
		})
	}
}

func TestTenThousandOverridesAreApplied(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	want, args := values{}, []any{}
	for i := range 10_001 {
		want[fmt.Sprint(i)] = "1"
		args = append(args, fmt.Sprint(i), "1")
	}
	require.NoError(t, db.Client(t).HSet(t.Context(), db.Prefix+"rls:overrides", args...).Err())
	replica := newReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix, Resync: 50 * time.Millisecond})
	replica.start()
	replica.awaitOverrides(want)
}

func TestManyMessagesCauseFewReadsAndTheLatestOverridesAreApplied(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	client := connect(t, redis.Server{URL: db.Addr})
	replica := startReplica(t, overrides.Options{Client: client, Prefix: db.Prefix, Resync: noResync})
	awaitSettled(t, db.Client(t), db.Prefix, replica)
	want := values{}
	_, err := client.Pipelined(t.Context(), func(p goredis.Pipeliner) error {
		for i := range 3000 {
			target, value := fmt.Sprint(i%1000), fmt.Sprint(i)
			want[target] = value
			p.HSet(t.Context(), db.Prefix+"rls:overrides", target, value)
			p.Publish(t.Context(), db.Prefix+"rls:overrides", target)
			p.Publish(t.Context(), db.Prefix+"rls:resets", target)
		}
		return nil
	})
	require.NoError(t, err)
	replica.awaitOverrides(want)
	assert.Less(t, replica.applyCount(), 1000, "one read serves many messages")
}

// TestConcurrentWritesAreAtomic writes one target from all replicas at the same time. Each write must replace another
// value, as if the writes happened one after the other. At the end, all replicas must have the same value.
func TestConcurrentWritesAreAtomic(t *testing.T) {
	t.Parallel()
	const writes = 50
	db := redistest.Open(t)
	var replicas []*replica
	for range 3 {
		replicas = append(replicas, startReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix, Resync: noResync}))
	}
	awaitSettled(t, db.Client(t), db.Prefix, replicas...)
	var mu sync.Mutex
	writtenValues, replacedValues := values{}, values{}
	var writers sync.WaitGroup
	for i, replica := range replicas {
		writers.Go(func() {
			for n := range writes {
				value := fmt.Sprint(i, n)
				oldValue, hadValue, err := "", false, error(nil)
				isDeletion := n%5 == 4
				if isDeletion {
					oldValue, hadValue, err = replica.Delete(context.Background(), "a")
				} else {
					oldValue, hadValue, err = replica.Put(context.Background(), "a", value)
				}
				assert.NoError(t, err)
				mu.Lock()
				if !isDeletion {
					writtenValues[value] = ""
				}
				if hadValue {
					assert.NotContains(t, replacedValues, oldValue, "two writers replaced the same value")
					replacedValues[oldValue] = ""
				}
				mu.Unlock()
			}
		})
	}
	writers.Wait()
	want := storedValues(db.Client(t), db.Prefix)
	if lastValue, ok := want["a"]; ok {
		replacedValues[lastValue] = ""
	}
	assert.Equal(t, writtenValues, replacedValues, "each written value was replaced, or is the last value")
	for _, replica := range replicas {
		replica.awaitOverrides(want)
	}
}

func TestPutWritesAndNotifiesInOneCommand(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	otherReplica := startReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix, Resync: noResync})
	awaitSettled(t, db.Client(t), db.Prefix, otherReplica)
	client := connect(t, redis.Server{URL: db.Addr})
	s := newReplica(t, overrides.Options{Client: client, Prefix: db.Prefix})
	_, _, err := s.Put(t.Context(), "a", "1") // loads the script
	require.NoError(t, err)
	commands := 0
	for _, name := range []string{"evalsha", "eval", "hset", "hget", "publish", "multi"} {
		client.AddHook(commandHook{name, func() { commands++ }})
	}
	_, _, err = s.Put(t.Context(), "a", "2")
	require.NoError(t, err)
	assert.Equal(t, 1, commands)
	otherReplica.awaitOverrides(values{"a": "2"})
}

func TestPutReturnsWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client, _, err := redis.Connect(redis.Server{URL: server.Addr}, time.Hour)
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	replica := startReplica(t, overrides.Options{Client: client, Resync: 50 * time.Millisecond})
	server.Pause()
	defer server.Resume()
	for range 3 { // the second and the third Put wait for a read that hangs
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		start := time.Now()
		_, _, err := replica.Put(ctx, "a", "1")
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Less(t, time.Since(start), timeout)
	}
}

func TestChangesAreAppliedOnlyWhileRunIsRunning(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	replica := newReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix})
	_, _, err := replica.Put(t.Context(), "a", "1")
	require.NoError(t, err)
	assert.Zero(t, replica.applyCount())

	stop := replica.start()
	replica.awaitOverrides(values{"a": "1"})
	stop()
	_, _, err = replica.Put(t.Context(), "a", "2")
	require.NoError(t, err)
	assert.Equal(t, 1, replica.applyCount())

	replica.start()
	replica.awaitOverrides(values{"a": "2"})
}

func TestOptionsHaveDefaults(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	s := newReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix})
	ctx, cancel := context.WithCancel(t.Context())
	var goroutine sync.WaitGroup
	goroutine.Go(func() { _ = s.Run(ctx, func(source.Update) error { return nil }) })
	awaitSubscriptions(t, db.Prefix+"rls:resets", 1, db.Client(t))
	_, _, err := s.Put(ctx, "a", "1")
	require.NoError(t, err)
	require.NoError(t, s.PublishReset(ctx, "a"))
	cancel()
	goroutine.Wait()
}

package redis_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/limit"
)

func TestScriptFlushUnderLoadChargesOnce(t *testing.T) {
	s := redistest.Start(t)
	l, lim := open(t, redis.Options{Main: redis.Server{URL: s.Addr}, Timeout: testTimeout}), perDay(t, 1_000_000_000)
	client := s.Client(t)
	scriptLoad, plainLoad := startLoad(l, lim, 16, 10), startLoad(l, newPlainLimit(t, 1_000_000_000), 4, 10)
	defer scriptLoad.stop()
	defer plainLoad.stop()
	polltest.Until(t, testTimeout, func() bool { return scriptLoad.admitted.Load() > 0 })
	for range 50 {
		require.NoError(t, client.ScriptFlush(t.Context()).Err())
		time.Sleep(5 * time.Millisecond)
	}
	scriptLoad.stop()
	plainLoad.stop()
	scriptLoad.requireNoErrors(t)
	plainLoad.requireNoErrors(t)
	assert.Equal(t, scriptLoad.admitted.Load()+plainLoad.admitted.Load(), totalSpent(t, l, lim, 10), "both loads charge the same counters")
}

// slack is the time that a busy machine may add to a timeout.
const slack = 400 * time.Millisecond

func TestKilledRedisFailsHitsWithinBudgetAndRecovers(t *testing.T) {
	s := redistest.Start(t)
	o := redis.Options{Main: redis.Server{URL: s.Addr}}
	l, lim := open(t, o), perDay(t, 1_000_000_000)
	load := startLoad(l, lim, 16, 10)
	defer load.stop()
	polltest.Until(t, testTimeout, func() bool { return load.admitted.Load() > 0 })
	s.Kill()
	time.Sleep(300 * time.Millisecond)
	polltest.Until(t, testTimeout, func() bool { return load.failed.Load() > 0 })
	load.stop()
	require.ErrorIs(t, *load.firstError.Load(), backend.ErrUnavailable)
	load.requireInTime(t)
	require.Error(t, l.Ping(t.Context()))

	s.Restart(t)
	awaitRecovery(t, l, lim)
	polltest.Until(t, testTimeout, func() bool { return l.Ping(t.Context()) == nil })
}

// awaitRecovery waits until Redis decides hits.
func awaitRecovery(t *testing.T, l *redis.Limiter, lim *limit.Limit) {
	t.Helper()
	polltest.Until(t, testTimeout, func() bool { return take(l, hit("key", lim, 1))[0].Err == nil })
}

func TestFrozenRedisFailsHitsWithinBudgetAndRecovers(t *testing.T) {
	s := redistest.Start(t)
	l, lim := open(t, redis.Options{Main: redis.Server{URL: s.Addr}}), perDay(t, 1_000_000_000)
	awaitRecovery(t, l, lim)
	s.Pause()
	defer s.Resume()
	goroutinesBefore := runtime.NumGoroutine()
	load := startLoad(l, lim, 32, 10)
	defer load.stop()
	time.Sleep(400 * time.Millisecond)
	assert.Less(t, runtime.NumGoroutine(), goroutinesBefore+32+20, "the number of goroutines does not grow with the hits")
	polltest.Until(t, testTimeout, func() bool { return load.failed.Load() > 0 })
	load.stop()
	assert.Zero(t, load.admitted.Load())
	require.ErrorIs(t, *load.firstError.Load(), backend.ErrUnavailable)
	load.requireInTime(t)
	s.Resume()
	awaitRecovery(t, l, lim)
}

func TestRedisMayBeDownAtStart(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Kill()
	l, lim := open(t, redis.Options{Main: redis.Server{URL: s.Addr}, Timeout: testTimeout}), perDay(t, 5)
	err := take(l, hit("key", lim, 1))[0].Err
	require.ErrorIs(t, err, backend.ErrUnavailable)
	assert.ErrorContains(t, err, s.Addr)
	s.Restart(t)
	awaitRecovery(t, l, lim)
}

func TestCancelledCallerReturnsAtOnce(t *testing.T) {
	s := redistest.Start(t)
	l, lim := open(t, redis.Options{Main: redis.Server{URL: s.Addr}, Timeout: testTimeout}), perDay(t, 5)
	require.NoError(t, take(l, hit("key", lim, 1))[0].Err)
	s.Pause()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	key, results := []byte("key"), make([]backend.Result, 1)
	start := time.Now()
	l.Take(ctx, time.Now(), []backend.Hit{{Key: key, Limit: lim, N: 1}}, results)
	assert.Less(t, time.Since(start), testTimeout/2)
	require.ErrorIs(t, results[0].Err, context.Canceled)
	assert.NotErrorIs(t, results[0].Err, backend.ErrUnavailable, "the backend did not fail")

	// A late answer must not be written to the caller's memory.
	err := results[0].Err
	copy(key, "xxx")
	s.Resume()
	require.NoError(t, take(l, hit("other", lim, 1))[0].Err)
	assert.Equal(t, err, results[0].Err)
	assert.Equal(t, int64(5), take(l, hit("xxx", lim, 0))[0].Remaining)
}

func TestTakeReturnsBeforeTheCallersDeadline(t *testing.T) {
	s := redistest.Start(t)
	l, lim := open(t, redis.Options{Main: redis.Server{URL: s.Addr}, Timeout: testTimeout}), perDay(t, 5)
	require.NoError(t, take(l, hit("key", lim, 1))[0].Err)
	s.Pause()
	defer s.Resume()
	results := make([]backend.Result, 1)
	start := time.Now()
	l.Take(deadlineOnly{t.Context(), start.Add(100 * time.Millisecond)}, start, []backend.Hit{hit("key", lim, 1)}, results)
	assert.Less(t, time.Since(start), testTimeout/2)
	assert.ErrorIs(t, results[0].Err, backend.ErrUnavailable, "another Limiter may decide")
}

// deadlineOnly is a context that has a deadline, but does not end at the deadline. So if a Take returns
// in time, the reason is its own budget.
type deadlineOnly struct {
	context.Context
	deadline time.Time
}

func (d deadlineOnly) Deadline() (time.Time, bool) { return d.deadline, true }

func TestFullQueueFailsHitsAtOnce(t *testing.T) {
	s := redistest.Start(t)
	l := open(t, redis.Options{Main: redis.Server{URL: s.Addr}, Timeout: testTimeout, MaxInflightBatches: 1, MaxBatchSize: 1, MaxQueueSize: 2})
	lim := perDay(t, 5)
	require.NoError(t, take(l, hit("key", lim, 1))[0].Err)
	s.Pause()
	defer s.Resume()
	results := make(chan error, 10)
	for range 10 {
		go func() { results <- take(l, hit("key", lim, 1))[0].Err }()
	}
	for range 7 { // one Take is in flight, and two Takes wait
		select {
		case err := <-results:
			require.Equal(t, backend.ReasonOverload, backend.ReasonOf(err))
			assert.ErrorContains(t, err, "too many")
		case <-time.After(testTimeout / 2):
			t.Fatal("a caller waits although the queue is full")
		}
	}
	s.Resume()
	for range 3 {
		<-results
	}
}

// addForeignSet stores a set under the name of a counter.
func addForeignSet(t *testing.T, client *goredis.Client, name string) {
	require.NoError(t, client.SAdd(t.Context(), name, 1).Err())
	require.NoError(t, client.Expire(t.Context(), name, time.Hour).Err())
}

func TestForeignKeyFailsOnlyItsHit(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	l, lim := open(t, redis.Options{Main: redis.Server{URL: db.Addr}, KeyPrefix: db.Prefix, Timeout: testTimeout}), perDay(t, 5)
	addForeignSet(t, db.Client(t), windowName(db.Prefix+"v2:fw86400:set", lim))
	got := take(l, hit("mine", lim, 1), hit("set", lim, 1), hit("mine", lim, 1))
	assert.NoError(t, got[0].Err)
	assert.ErrorIs(t, got[1].Err, backend.ErrUnavailable)
	assert.ErrorContains(t, got[1].Err, "WRONGTYPE")
	assert.Equal(t, int64(3), got[2].Remaining)
}

func TestReplicaInsteadOfMasterIsUnavailable(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l, lim := open(t, redis.Options{Main: redis.Server{URL: s.Addr}, Timeout: time.Second}), perDay(t, 5)
	require.NoError(t, s.Client(t).Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err())
	err := take(l, hit("key", lim, 1))[0].Err
	require.ErrorIs(t, err, backend.ErrUnavailable)
	require.NoError(t, s.Client(t).Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
	awaitRecovery(t, l, lim)
}

func TestClosedLimiterFailsHits(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	l, err := redis.New(redis.Options{Main: redis.Server{URL: db.Addr}})
	require.NoError(t, err)
	require.NoError(t, l.Close())
	got := take(l, hit("key", perDay(t, 5), 1))[0].Err
	require.True(t, errors.Is(got, backend.ErrUnavailable), got)
}

package redis_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
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

// holderEnv is the environment variable with the address of a Redis. A process of this test binary with
// this variable renews a hold until it is killed.
const holderEnv = "RLS_TEST_HOLDER"

const holderID = "lost-worker"

// newOneSlotLimit returns a limit of one slot. Its holds last a second.
func newOneSlotLimit() *limit.Limit {
	l, err := limit.New(limit.Spec{Algorithm: limit.Concurrency, Requests: 1, Hold: 1_000_000})
	if err != nil {
		panic(err)
	}
	return l
}

func holdHit(key string, l *limit.Limit, n int64, id string) backend.Hit {
	return backend.Hit{Key: []byte(key), Limit: l, N: n, HoldID: id}
}

// runHolder takes the slot and renews its hold three times a second.
func runHolder(addr string) {
	l, err := redis.New(redis.Options{Main: redis.Server{URL: addr}, Timeout: testTimeout})
	if err != nil {
		panic(err)
	}
	lim := newOneSlotLimit()
	for {
		if r := take(l, holdHit("key", lim, 1, holderID))[0]; r.Err != nil || !r.Allowed {
			panic(fmt.Sprint("no slot: ", r))
		}
		fmt.Println("renewed")
		time.Sleep(300 * time.Millisecond)
	}
}

// The clock of Redis decides when the slot of a killed process is free.
func TestKilledHolderFreesItsSlotWhenItsHoldExpires(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	client := s.Client(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), holderEnv+"="+s.Addr)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewReader(stdout)
	l, lim := open(t, redis.Options{Main: redis.Server{URL: s.Addr}, Timeout: testTimeout}), newOneSlotLimit()
	for range 5 { // longer than a hold
		_, err = lines.ReadString('\n')
		require.NoError(t, err)
		assert.False(t, take(l, holdHit("key", lim, 1, "next"))[0].Allowed, "the holder renews its hold")
	}
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // it returns an error, because the process was killed

	expiry := time.UnixMicro(int64(client.ZScore(t.Context(), "v1:cc:key", "i"+holderID).Val()) / 2)
	polltest.Until(t, testTimeout, func() bool {
		timeBefore := client.Time(t.Context()).Val()
		r := take(l, holdHit("key", lim, 1, "next"))[0]
		require.NoError(t, r.Err)
		if r.Allowed {
			assert.False(t, client.Time(t.Context()).Val().Before(expiry), "the slot is not free too soon")
			return true
		}
		assert.True(t, timeBefore.Before(expiry), "the slot is free at once")
		return false
	})
	// A release in the name of the killed process comes too late, as a renewal would.
	assert.True(t, take(l, holdHit("key", lim, -1, holderID))[0].Allowed)
	assert.False(t, take(l, holdHit("key", lim, 1, holderID))[0].Allowed)
}

func TestHoldersOfAllReplicasNeverExceedTheLimit(t *testing.T) {
	t.Parallel()
	const slots = 4
	db := redistest.Open(t)
	lim := newLimit(t, limit.Spec{Algorithm: limit.Concurrency, Requests: slots, Hold: limit.MaxHold})
	var holders, maxHolders, admitted atomic.Int64
	var callerGroup sync.WaitGroup
	for replica := range 3 {
		l := open(t, redis.Options{Main: redis.Server{URL: db.Addr}, KeyPrefix: db.Prefix, Timeout: testTimeout})
		for caller := range 8 {
			callerGroup.Go(func() {
				for i := range 30 {
					h := hit("key", lim, 1)
					if caller%2 == 0 {
						h.HoldID = fmt.Sprint(replica, "-", caller, "-", i)
					}
					r := take(l, h)[0]
					if !assert.NoError(t, r.Err) || !r.Allowed {
						continue
					}
					n := holders.Add(1)
					for oldMax := maxHolders.Load(); n > oldMax && !maxHolders.CompareAndSwap(oldMax, n); oldMax = maxHolders.Load() {
					}
					admitted.Add(1)
					time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
					if h.HoldID != "" {
						assert.True(t, take(l, h)[0].HoldExists)
					}
					holders.Add(-1)
					h.N = -1
					assert.NoError(t, take(l, h)[0].Err)
				}
			})
		}
	}
	callerGroup.Wait()
	assert.LessOrEqual(t, maxHolders.Load(), int64(slots))
	assert.Greater(t, admitted.Load(), int64(slots))
	l := open(t, redis.Options{Main: redis.Server{URL: db.Addr}, KeyPrefix: db.Prefix, Timeout: testTimeout})
	assert.Equal(t, int64(slots), take(l, hit("key", lim, 0))[0].Remaining, "all slots are free")
	assert.Empty(t, db.Keys(t), "a counter without holds has no key")
}

// A user without the rights for holds can use all other limits.
func TestOtherLimitsWorkWithoutTheRightsForHolds(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	setUser(t, s.Client(t), baseRules+rulesFor(redis.RightOfAll, redis.RightOfChecks, redis.RightOfIncrements, redis.RightOfWindows, redis.RightOfScripts))
	l := open(t, redis.Options{Main: redis.Server{URL: s.Addr, Auth: "rls:secret-1"}, KeyPrefix: "myprefix:", Timeout: testTimeout})
	logLimit := newLimit(t, limit.Spec{Algorithm: limit.SlidingLog, Requests: 4, Unit: limit.Hour})
	got := take(l, hit("key", newOneSlotLimit(), 1), hit("key", logLimit, 1))
	require.ErrorIs(t, got[0].Err, backend.ErrUnavailable)
	require.NoError(t, got[1].Err)
	assert.True(t, got[1].Allowed)

	findings := l.Check(context.Background())
	var texts []string
	for _, f := range findings {
		if f.Check == redis.CheckRights {
			texts = append(texts, fmt.Sprint(f.Level, ": ", f.Text))
		}
	}
	assert.Equal(t, []string{"warning: the user rls may not run zadd, zrem, zcard, zscore, zrangebyscore, zrevrangebyscore, pttl, so the fallback decides all limits with algorithm concurrency"}, texts)
}

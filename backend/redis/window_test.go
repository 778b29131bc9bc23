package redis_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/limit"
)

// newPlainLimit returns a fixed_window limit of n per day that charges denied hits. Plain commands
// decide its hits, and a script decides the hits of perDay.
func newPlainLimit(tb testing.TB, n uint32) *limit.Limit {
	return newLimit(tb, limit.Spec{Requests: n, Unit: limit.Day, ChargeDenied: true})
}

func TestCounterIsANumberThatGetShows(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	l := open(t, redis.Options{Main: redis.Server{URL: db.Addr}, KeyPrefix: db.Prefix, Timeout: testTimeout})
	lim := newPlainLimit(t, 5)
	for range 7 {
		require.NoError(t, take(l, hit("key", lim, 2))[0].Err)
	}
	name := windowName(db.Prefix+"v2:fw86400:key", lim)
	assert.Equal(t, []string{name}, db.Keys(t))
	assert.Equal(t, "14", db.Client(t).Get(t.Context(), name).Val())
	assert.Equal(t, int64(-9), take(l, hit("key", lim, 0))[0].Remaining)
}

// commandCalls returns how often Redis has executed each command.
func commandCalls(t *testing.T, s *redistest.Server) map[string]int {
	calls := map[string]int{}
	for line := range strings.Lines(s.Client(t).Info(t.Context(), "commandstats").Val()) {
		var n int
		name, numbers, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if _, err := fmt.Sscanf(numbers, "%d,", &n); err == nil {
			calls[name] = n
		}
	}
	return calls
}

func TestKnownKeyCostsOneCommand(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l, lim := open(t, redis.Options{Main: redis.Server{URL: s.Addr}, Timeout: testTimeout}), newPlainLimit(t, 1000)
	for range 50 {
		require.NoError(t, take(l, hit("key", lim, 1))[0].Err)
	}
	for _, r := range take(l, hit("key", lim, 1), hit("key", lim, 2), hit("key", lim, 0), hit("key", lim, 3)) {
		require.NoError(t, r.Err)
	}
	calls := commandCalls(t, s)
	assert.Equal(t, 50, calls["incr"])
	assert.Equal(t, 1, calls["incrby"], "one command charges all hits of a batch on one key")
	assert.Equal(t, 1, calls["set"], "the key gets its time to live once")
	assert.Zero(t, calls["eval"]+calls["evalsha"])
	assert.Equal(t, int64(944), take(l, hit("key", lim, 0))[0].Remaining)
	assert.Equal(t, 1, commandCalls(t, s)["get"])
}

func TestKeyThatRedisLosesGetsATimeToLiveAgain(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := open(t, redis.Options{Main: redis.Server{URL: s.Addr}, Timeout: testTimeout})
	lim, client := newPlainLimit(t, 1000), s.Client(t)
	for i := range 4 {
		for j := range 3 {
			require.NoError(t, take(l, hit(fmt.Sprint("key", j), lim, 1), hit("other", lim, int64(j)))[0].Err)
		}
		require.Equal(t, 4, redistest.RequireAllExpire(t, s), "after %d losses", i)
		require.NoError(t, client.FlushAll(t.Context()).Err())
	}
}

func TestForeignValuesFailOnlyTheirPlainHits(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	l, lim := open(t, redis.Options{Main: redis.Server{URL: db.Addr}, KeyPrefix: db.Prefix, Timeout: testTimeout}), newPlainLimit(t, 5)
	client := db.Client(t)
	addForeignSet(t, client, windowName(db.Prefix+"v2:fw86400:set", lim))
	require.NoError(t, client.Set(t.Context(), windowName(db.Prefix+"v2:fw86400:text", lim), "text", time.Hour).Err())
	for _, n := range []int64{1, 0} {
		got := take(l, hit("mine", lim, 1), hit("set", lim, n), hit("text", lim, n), hit("mine", lim, 1))
		assert.NoError(t, got[0].Err)
		for _, r := range got[1:3] {
			require.ErrorIs(t, r.Err, backend.ErrUnavailable)
			assert.ErrorContains(t, r.Err, "v2:fw86400:")
		}
		assert.NoError(t, got[3].Err)
	}
	assert.Equal(t, int64(1), take(l, hit("mine", lim, 0))[0].Remaining)
}

func TestRefusedConnectionFailsPlainHits(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	setUser(t, s.Client(t), rights)
	lim := newPlainLimit(t, 5)
	l := open(t, redis.Options{Main: redis.Server{URL: s.Addr, Auth: "rls:wrong"}, Timeout: testTimeout})
	for _, r := range take(l, hit("a", lim, 1), hit("b", lim, 1)) {
		require.ErrorIs(t, r.Err, backend.ErrUnavailable)
		assert.ErrorContains(t, r.Err, "WRONGPASS")
	}
}

// One replica uses plain commands, and the other replica uses scripts with groups. Both charge the same counters, with
// peeks and refunds between. They must admit no hits beyond the limits.
func TestPlainCommandsAndScriptShareCountersExactly(t *testing.T) {
	t.Parallel()
	singleServer := redistest.Start(t)
	cluster := redistest.StartCluster(t, 3, false)
	for name, o := range map[string]redis.Options{
		"single":  {Main: redis.Server{URL: singleServer.Addr}, MaxInflightBatches: 2},
		"cluster": {Main: redis.Server{Kind: redis.Cluster, URL: cluster.URL()}, Partitions: 4},
	} {
		t.Run(name, func(t *testing.T) {
			o.Timeout = testTimeout
			plainReplica, groupReplica := open(t, o), backendtest.AllOrNone(open(t, o))
			rapid.Check(t, func(rt *rapid.T) { checkSharedCounters(rt, plainReplica, groupReplica) })
		})
	}
	for _, s := range cluster.Masters {
		assert.NotContains(t, s.Client(t).Info(t.Context(), "errorstats").Val(), "CROSSSLOT")
	}
}

func checkSharedCounters(t *rapid.T, plainReplica, groupReplica backend.Limiter) {
	const callers = 8
	maxHits := rapid.Uint32Range(0, 60).Draw(t, "limit")
	var limits []*limit.Limit
	for _, chargeDenied := range []bool{true, true, false} {
		limits = append(limits, backendtest.NewLimit(t, limit.Spec{Requests: maxHits, Unit: limit.Year, Multiplier: 10, ChargeDenied: chargeDenied}))
	}
	keys := [2][]byte{backendtest.Key(), backendtest.Key()}
	hit := rapid.Custom(func(t *rapid.T) backend.Hit {
		return backend.Hit{
			Key:    keys[rapid.IntRange(0, 1).Draw(t, "key")],
			Limit:  rapid.SampledFrom(limits).Draw(t, "limit"),
			N:      rapid.SampledFrom([]int64{1, 1, 1, 2, 5, 0}).Draw(t, "n"),
			Shadow: rapid.Bool().Draw(t, "shadow"),
		}
	})
	request := rapid.SliceOfN(hit, 1, 4)
	var admittedHits [2]atomic.Int64
	var callerGroup sync.WaitGroup
	for caller := range callers {
		requests := rapid.SliceOfN(request, 1, 4).Draw(t, "requests")
		isGrouped := caller%2 == 1
		replica := []backend.Limiter{plainReplica, groupReplica}[caller%2]
		callerGroup.Go(func() {
			for _, hits := range requests {
				results := make([]backend.Result, len(hits))
				replica.Take(context.Background(), time.Now(), hits, results)
				groupIsDenied := false
				for i, r := range results {
					assert.NoError(t, r.Err)
					groupIsDenied = groupIsDenied || isGrouped && hits[i].N > 0 && !hits[i].Shadow && !r.Allowed
				}
				for i, r := range results {
					if r.Allowed && (!groupIsDenied || hits[i].N <= 0 || hits[i].Shadow) {
						admittedHits[slices.IndexFunc(keys[:], func(k []byte) bool { return bytes.Equal(k, hits[i].Key) })].Add(hits[i].N)
					}
				}
			}
		})
	}
	callerGroup.Wait()
	for i := range keys {
		if got := admittedHits[i].Load(); got > int64(maxHits) {
			t.Fatalf("%d hits admitted, limit %d", got, maxHits)
		}
	}
}

// endlessLoadEnv is the environment variable with the address of a Redis. A process of this test binary
// with this variable charges new keys until it is killed.
const endlessLoadEnv = "RLS_TEST_ENDLESS_LOAD"

// runEndlessLoad charges new keys in batches of any size. A batch of a thousand hits takes
// several writes to the connection.
func runEndlessLoad(addr string) {
	l, err := redis.New(redis.Options{Main: redis.Server{URL: addr}, MaxInflightBatches: 4, MaxBatchSize: 2000, Timeout: testTimeout})
	if err != nil {
		panic(err)
	}
	lim, err := limit.New(limit.Spec{Requests: 10, Unit: limit.Year, ChargeDenied: true})
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	for i := range 8 {
		go func() {
			results := make([]backend.Result, 2000)
			for {
				hits := make([]backend.Hit, 1+rand.IntN([]int{1, 10, 1000, 1500}[i%4]))
				for j := range hits {
					hits[j] = backend.Hit{Key: fmt.Appendf(nil, "key%d", rand.Int64()), Limit: lim, N: 1}
				}
				l.Take(context.Background(), time.Now(), hits, results[:len(hits)])
			}
		}()
	}
	select {}
}

func TestKilledProcessLeavesNoKeyWithoutTimeToLive(t *testing.T) {
	s := redistest.Start(t)
	client := s.Client(t)
	for round := range 10 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), endlessLoadEnv+"="+s.Addr)
		stdout, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		_, err = bufio.NewReader(stdout).ReadString('\n')
		require.NoError(t, err)
		polltest.Until(t, testTimeout, func() bool { return client.DBSize(t.Context()).Val() > 100 })
		time.Sleep(time.Duration(rand.IntN(20_000)) * time.Microsecond) // so the kill comes at any place of a batch
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // it returns an error, because the process was killed
		// When Redis has closed the connections, it has read all commands of the process.
		polltest.Until(t, testTimeout, func() bool {
			return strings.Count(client.ClientList(t.Context()).Val(), "\n") == 1
		})
		require.Greater(t, redistest.RequireAllExpire(t, s), 100, "round %d", round)
		require.NoError(t, client.FlushAll(t.Context()).Err())
	}
}

package redis_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/base/clienttls"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/limit"
)

func TestConnectionsOverTLSAreVerified(t *testing.T) {
	t.Parallel()
	certs := redistest.NewCerts(t, "redis.test")
	otherCerts := redistest.NewCerts(t, "redis.test")
	s := redistest.StartTLS(t, certs)
	for _, c := range []struct {
		name      string
		files     clienttls.Files
		wantError string
	}{
		{"hostname is not checked", clienttls.Files{CA: certs.CA, Cert: certs.ClientCert, Key: certs.ClientKey, SkipHostname: true}, ""},
		{"certificate of another hostname", clienttls.Files{CA: certs.CA, Cert: certs.ClientCert, Key: certs.ClientKey}, "127.0.0.1"},
		{"another authority", clienttls.Files{CA: otherCerts.CA, Cert: certs.ClientCert, Key: certs.ClientKey, SkipHostname: true}, "unknown authority"},
		{"no client certificate", clienttls.Files{CA: certs.CA, SkipHostname: true}, " "},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf, err := c.files.Config()
			require.NoError(t, err)
			l := open(t, redis.Options{Main: redis.Server{URL: s.Addr, TLS: conf}, Timeout: testTimeout})
			got := take(l, hit("key", perDay(t, 5), 1))[0]
			if c.wantError == "" {
				require.NoError(t, got.Err)
				return
			}
			require.ErrorIs(t, got.Err, backend.ErrUnavailable)
			assert.ErrorContains(t, got.Err, c.wantError)
		})
	}
}

func TestRedisIsReachedOverAUnixSocket(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/redis.sock"
	redistest.Start(t, "--unixsocket", path)
	for _, s := range []redis.Server{{URL: path}, {URL: path, SocketType: "unix"}, {URL: "unix://" + path}} {
		l := open(t, redis.Options{Main: s, Timeout: testTimeout})
		assert.NoError(t, take(l, hit("key", perDay(t, 5), 1))[0].Err, s.URL)
	}
}

func setUser(t *testing.T, c *goredis.Client, rights string) {
	t.Helper()
	args := []any{"ACL", "SETUSER", "rls", "on", ">secret-1"}
	for right := range strings.FieldsSeq(rights) {
		args = append(args, right)
	}
	require.NoError(t, c.Do(t.Context(), args...).Err())
}

func TestDocumentedRightsSuffice(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	setUser(t, s.Client(t), rights)
	o := redis.Options{Main: redis.Server{URL: s.Addr, Auth: "rls:secret-1"}, KeyPrefix: "myprefix:", Timeout: testTimeout}
	l := open(t, o)
	require.NoError(t, l.Ping(t.Context()))
	for _, a := range limit.Algorithms() {
		for _, chargeDenied := range []bool{false, true} {
			lim := newLimit(t, limit.Spec{Algorithm: a, Requests: 4, Unit: limit.Hour, ChargeDenied: chargeDenied})
			for _, n := range []int64{1, 3, 1, -1, 0, 1, -4, -1, 2} {
				require.NoError(t, take(l, hit("key", lim, n))[0].Err, a)
			}
		}
	}
	require.NoError(t, s.Client(t).FlushAll(t.Context()).Err())
	for range 2 { // Redis has lost a key
		require.NoError(t, take(l, hit("key", newPlainLimit(t, 5), 1))[0].Err)
		assert.Equal(t, 1, redistest.RequireAllExpire(t, s))
		require.NoError(t, s.Client(t).FlushAll(t.Context()).Err())
	}

	o.KeyPrefix = "other:"
	err := take(open(t, o), hit("key", perDay(t, 5), 1))[0].Err
	require.ErrorIs(t, err, backend.ErrUnavailable)
	assert.ErrorContains(t, err, "NOPERM")

	o.Main.Auth = "rls:secret-2"
	err = take(open(t, o), hit("key", perDay(t, 5), 1))[0].Err
	require.ErrorIs(t, err, backend.ErrUnavailable)
	assert.ErrorContains(t, err, "WRONGPASS")
	assert.NotContains(t, err.Error(), "secret")
}

func TestDocumentedRightsSufficeInACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, false)
	for _, s := range c.Masters {
		setUser(t, s.Client(t), rights+clusterRights)
	}
	l := open(t, redis.Options{Main: redis.Server{Kind: redis.Cluster, URL: c.URL(), Auth: "rls:secret-1"}, KeyPrefix: "myprefix:", Timeout: testTimeout})
	lim := perDay(t, 1_000_000_000)
	load := startLoad(l, lim, 4, 100)
	defer load.stop()
	polltest.Until(t, testTimeout, func() bool { return load.admitted.Load() > 1000 })
	slots := counterSlots(t, c.Masters[0].Client(t), "")
	require.NotEmpty(t, slots)
	for slot := range slots {
		c.Migrate(t, int(slot), c.Masters[0], c.Masters[1], func() { time.Sleep(time.Millisecond) })
	}
	load.stop()
	load.requireNoErrors(t)
	require.NoError(t, l.Ping(t.Context()))
}

func TestPasswordWithoutAUserIsEnough(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	require.NoError(t, s.Client(t).ConfigSet(t.Context(), "requirepass", "secret-1").Err())
	lim := perDay(t, 5)
	assert.NoError(t, take(open(t, redis.Options{Main: redis.Server{URL: s.Addr, Auth: "secret-1"}, Timeout: testTimeout}), hit("key", lim, 1))[0].Err)
	assert.NoError(t, take(open(t, redis.Options{Main: redis.Server{URL: "redis://:secret-1@" + s.Addr}, Timeout: testTimeout}), hit("key", lim, 1))[0].Err)
	err := take(open(t, redis.Options{Main: redis.Server{URL: s.Addr}, Timeout: testTimeout}), hit("key", lim, 1))[0].Err
	require.ErrorIs(t, err, backend.ErrUnavailable)
	assert.ErrorContains(t, err, "NOAUTH")
}

func TestPerSecondRedisCountsLimitsPerSecond(t *testing.T) {
	t.Parallel()
	main, perSecond := redistest.Start(t), redistest.Start(t)
	l := open(t, redis.Options{Main: redis.Server{URL: main.Addr}, PerSecond: &redis.Server{URL: perSecond.Addr}, Timeout: testTimeout, Jitter: time.Hour})
	perSecondLimit := newLimit(t, limit.Spec{Requests: 5, Unit: limit.Second})
	twoSecondLimit := newLimit(t, limit.Spec{Requests: 5, Unit: limit.Second, Multiplier: 2})
	for _, r := range take(l, hit("a", perSecondLimit, 1), hit("a", twoSecondLimit, 1), hit("a", perDay(t, 5), 1)) {
		require.NoError(t, r.Err)
	}
	assert.Equal(t, []string{"v2:fw1:a"}, countersWithoutWindow(perSecond.Client(t).Keys(t.Context(), "*").Val()))
	assert.ElementsMatch(t, []string{"v2:fw2:a", "v2:fw86400:a"}, countersWithoutWindow(main.Client(t).Keys(t.Context(), "*").Val()))

	perSecond.Kill()
	got := take(l, hit("a", perSecondLimit, 1), hit("a", twoSecondLimit, 1))
	assert.ErrorIs(t, got[0].Err, backend.ErrUnavailable)
	assert.NoError(t, got[1].Err, "the other Redis still counts")
}

func TestSentinelCountsAgainAfterAFailover(t *testing.T) {
	s := redistest.StartSentinels(t)
	server := redis.Server{Kind: redis.Sentinel, URL: s.URL()}
	l, patientLimiter := open(t, redis.Options{Main: server}), open(t, redis.Options{Main: server, Timeout: testTimeout})
	lim := perDay(t, 1_000_000_000)
	awaitRecovery(t, patientLimiter, lim)
	s.Master.AwaitReplica(t)
	remaining := take(patientLimiter, hit("key", lim, 0))[0].Remaining
	assert.Less(t, remaining, lim.Max())

	load := startLoad(l, lim, 8, 10)
	defer load.stop()
	polltest.Until(t, testTimeout, func() bool { return load.admitted.Load() > 0 })
	s.Master.Kill()
	killTime := time.Now()
	polltest.Until(t, failoverTimeout, func() bool { return take(patientLimiter, hit("other", lim, 1))[0].Err == nil })
	t.Logf("a new master after %v", time.Since(killTime))
	awaitProgress(t, load)
	load.stop()
	load.requireInTime(t) // callers do not wait for the failover
	assert.Equal(t, remaining, take(patientLimiter, hit("key", lim, 0))[0].Remaining, "the replica has the counts")
}

// failoverTimeout is the longest time that a test waits for a failover.
const failoverTimeout = 60 * time.Second

// awaitProgress waits until Redis decides hits of the load again.
func awaitProgress(t *testing.T, load *load) {
	t.Helper()
	admittedBefore := load.admitted.Load()
	polltest.Until(t, testTimeout, func() bool { return load.admitted.Load() > admittedBefore+100 })
}

func TestClusterCountsAgainAfterAFailover(t *testing.T) {
	c := redistest.StartCluster(t, 3, true)
	server := redis.Server{Kind: redis.Cluster, URL: c.URL()}
	l, patientLimiter := open(t, redis.Options{Main: server}), open(t, redis.Options{Main: server, Timeout: testTimeout})
	lim := perDay(t, 1_000_000_000)
	load := startLoad(l, lim, 8, 100)
	defer load.stop()
	polltest.Until(t, testTimeout, func() bool { return load.admitted.Load() > 1000 })
	c.Masters[0].Kill()
	polltest.Until(t, testTimeout, func() bool { return load.failed.Load() > 0 })
	polltest.Until(t, failoverTimeout, func() bool {
		for i := range 100 {
			if take(patientLimiter, hit(fmt.Sprint("other", i), lim, 1))[0].Err != nil {
				return false
			}
		}
		return true
	})
	awaitProgress(t, load)
	load.stop()
	load.requireInTime(t)
}

// countersWithoutWindow returns the names of counters without their windows.
func countersWithoutWindow(names []string) (counters []string) {
	for _, name := range names {
		counter, _, _ := strings.Cut(name, "@")
		counters = append(counters, counter)
	}
	return counters
}

// counterSlots returns the hash slots of the existing keys that contain prefix.
func counterSlots(t *testing.T, c *goredis.Client, prefix string) map[int64]bool {
	slots := map[int64]bool{}
	for _, key := range c.Keys(t.Context(), "*"+prefix+"*").Val() {
		slots[c.ClusterKeySlot(t.Context(), key).Val()] = true
	}
	return slots
}

func TestSlotMigrationUnderLoadLosesNoHit(t *testing.T) {
	t.Parallel()
	algorithms := []limit.Algorithm{limit.FixedWindow, limit.SlidingLog} // plain commands, and the script with most commands
	if os.Getenv("RLS_TEST_FULL") != "" {
		algorithms = limit.Algorithms()
	}
	c := redistest.StartCluster(t, 3, false)
	for _, a := range algorithms {
		t.Run(a.String(), func(t *testing.T) {
			l := open(t, redis.Options{Main: redis.Server{Kind: redis.Cluster, URL: c.URL()}, Timeout: testTimeout, Partitions: 4, KeyPrefix: a.String()})
			spec := limit.Spec{Algorithm: a, Requests: 1_000_000_000, Unit: limit.Day, Multiplier: 30, ChargeDenied: a.DefaultChargeDenied()}
			if a == limit.Concurrency {
				spec.Hold = limit.MaxHold // no hold expires during the test
			}
			lim := newLimit(t, spec)
			load := startLoad(l, lim, 16, 60)
			defer load.stop()
			polltest.Until(t, testTimeout, func() bool { return load.admitted.Load() > 1000 })
			for source, s := range c.Masters {
				slots := counterSlots(t, s.Client(t), a.String())
				require.NotEmpty(t, slots)
				for slot := range slots {
					c.Migrate(t, int(slot), s, c.Masters[(source+1)%3], func() { time.Sleep(time.Millisecond) })
				}
			}
			load.stop()
			load.requireNoErrors(t)
			if a == limit.TokenBucket { // the bucket refills during the test
				return
			}
			assert.Equal(t, load.admitted.Load(), totalSpent(t, l, lim, 60))
		})
	}
}

// A user with the rights that envoyproxy/ratelimit needs can charge windows, and nothing else.
func TestRightsOfTheIncumbentSufficeForFixedWindows(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	const incumbentRights = "resetkeys ~* resetchannels -@all +incrby +expire +ping +hello +select"
	setUser(t, s.Client(t), incumbentRights)
	for _, firstHits := range []int64{0, 1, 3} {
		l := open(t, redis.Options{Main: redis.Server{URL: s.Addr, Auth: "rls:secret-1"}, KeyPrefix: fmt.Sprint(firstHits), Timeout: testTimeout})
		require.NoError(t, l.Ping(t.Context()))
		lim := newPlainLimit(t, 10)
		count := int64(0)
		for _, n := range []int64{firstHits, 1, 0, 3, 1, 20, 0} {
			r := take(l, hit("key", lim, n))[0]
			require.NoError(t, r.Err)
			count += n
			assert.Equal(t, backend.SourceRedis, r.Source)
			assert.Equal(t, 10-count, r.Remaining)
		}
		err := take(l, hit("key", lim, -1))[0].Err
		assert.ErrorContains(t, err, "evalsha")
		assert.Equal(t, backend.ReasonOutage, backend.ReasonOf(err), "the fallback decides")
		assert.True(t, backend.IsNotSent(err), "the breaker stays closed for the other hits")

		findings := problems(t, l)
		require.Len(t, findings, 1)
		assert.Equal(t, redis.LevelProblem, findings[0].Level)
		assert.Contains(t, findings[0].Text, "Redis counts only limits with fixed_window")
		assert.Contains(t, findings[0].Advice, "run ACL SETUSER rls +eval +evalsha +time +set +incr")

		setUser(t, s.Client(t), incumbentRights+" +eval")
		assert.Contains(t, problems(t, l)[0].Text, "may not run evalsha")
		setUser(t, s.Client(t), incumbentRights)
	}
	assert.Equal(t, 3, redistest.RequireAllExpire(t, s))
}

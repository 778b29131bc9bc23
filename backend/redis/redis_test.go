package redis_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(endlessLoadEnv); addr != "" {
		runEndlessLoad(addr)
	}
	if addr := os.Getenv(holderEnv); addr != "" {
		runHolder(addr)
	}
	goleak.VerifyTestMain(m, redistest.IgnoreShared()...)
}

// open returns a Limiter that is closed when the test ends.
func open(tb testing.TB, o redis.Options) *redis.Limiter {
	tb.Helper()
	l, err := redis.New(o)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, l.Close()) })
	return l
}

// opener returns an open function for the suites, with the callers' clock.
func opener(o redis.Options) func(*testing.T) backend.Limiter {
	o.CallersClock, o.Timeout = true, testTimeout
	return func(t *testing.T) backend.Limiter { return open(t, o) }
}

// runSuites runs all suites of backendtest.
func runSuites(t *testing.T, o redis.Options) {
	backendtest.Run(t, opener(o))
	backendtest.RunAllOrNone(t, opener(o))
}

func TestSingleRedisAnswersAsALimiter(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	runSuites(t, redis.Options{Main: redis.Server{URL: db.Addr}, KeyPrefix: db.Prefix})
	require.NotZero(t, db.RequireAllExpire(t))
}

func TestClusterAnswersAsALimiter(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, false)
	runSuites(t, redis.Options{Main: redis.Server{Kind: redis.Cluster, URL: cluster.URL()}})
	for _, s := range cluster.Masters {
		require.NotZero(t, redistest.RequireAllExpire(t, s))
	}
}

func TestClusterWithReplicasAnswersAsALimiter(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, true)
	runSuites(t, redis.Options{Main: redis.Server{Kind: redis.Cluster, URL: cluster.URL()}, WaitReplicas: 1})
}

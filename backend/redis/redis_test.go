package redis_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/redistest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, redistest.IgnoreShared()...)
}

// open makes a Limiter that is closed when the test ends.
func open(tb testing.TB, o redis.Options) *redis.Limiter {
	tb.Helper()
	l, err := redis.New(o)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, l.Close()) })
	return l
}

// opener is open for a suite: on the callers' clock, with ample time.
func opener(o redis.Options) func(*testing.T) backend.Limiter {
	o.CallersClock, o.Timeout = true, ample
	return func(t *testing.T) backend.Limiter { return open(t, o) }
}

func TestSingleIsALimiter(t *testing.T) {
	db := redistest.Open(t)
	o := redis.Options{Main: redis.Server{URL: db.Addr}, KeyPrefix: db.Prefix}
	backendtest.Run(t, opener(o))
	o.AllOrNone = true
	backendtest.RunAllOrNone(t, opener(o))
}

func TestClusterIsALimiter(t *testing.T) {
	for _, c := range []struct {
		name     string
		replicas bool
	}{{"3 nodes", false}, {"6 nodes", true}} {
		t.Run(c.name, func(t *testing.T) {
			cluster := redistest.StartCluster(t, 3, c.replicas)
			o := redis.Options{Main: redis.Server{Kind: redis.Cluster, URL: cluster.URL()}}
			backendtest.Run(t, opener(o))
			o.AllOrNone = true
			backendtest.RunAllOrNone(t, opener(o))
		})
	}
}

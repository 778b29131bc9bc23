package memcached_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/memcached"
	"github.com/seed-81f232ab/rls/internal/testkit/memcachedtest"
	"github.com/seed-81f232ab/rls/internal/testkit/proctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, proctest.IgnoreStarter()) }

// open returns a Limiter that is closed when the test ends.
func open(tb testing.TB, o memcached.Options) *memcached.Limiter {
	tb.Helper()
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	if o.Connections == 0 {
		o.Connections = 16
	}
	l, err := memcached.New(o)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, l.Close()) })
	return l
}

// runSuites runs all suites of backendtest.
func runSuites(t *testing.T, o memcached.Options) {
	opener := func(t *testing.T) backend.Limiter { return backendtest.WithoutHolds(open(t, o)) }
	backendtest.Run(t, opener)
	backendtest.RunAllOrNone(t, opener)
}

func TestServerAnswersAsALimiter(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	runSuites(t, memcached.Options{Servers: []string{s.Addr}, KeyPrefix: "test:"})
	keys := s.Keys(t)
	assert.Greater(t, len(keys), 100)
	for key, life := range keys {
		assert.NotEqual(t, int64(-1), life, "%s never expires", key)
	}
}

func TestSeveralServersAnswerAsALimiter(t *testing.T) {
	t.Parallel()
	a, b := memcachedtest.Start(t), memcachedtest.Start(t)
	runSuites(t, memcached.Options{Servers: []string{a.Addr, b.Addr}})
	assert.NotEmpty(t, a.Keys(t))
	assert.NotEmpty(t, b.Keys(t))
}

package local

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/limit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCountersInThisProcessPassTheSuite(t *testing.T) {
	backendtest.Run(t, func(*testing.T) backend.Limiter { return New(Options{}) })
}

func TestCountersInThisProcessPassTheSuiteOfGroups(t *testing.T) {
	backendtest.RunAllOrNone(t, func(*testing.T) backend.Limiter { return New(Options{}) })
}

func TestBytesGrowWithKeysAndLogs(t *testing.T) {
	l := New(Options{MaxKeys: 1000})
	emptyBytes := l.Bytes()
	take := func(key string, a limit.Algorithm, n int) {
		lim := backendtest.NewLimit(t, limit.Spec{Algorithm: a, Requests: 1000, Unit: limit.Day})
		for i := range n {
			l.Take(t.Context(), time.UnixMicro(int64(1_700_000_000_000_000+i)), []backend.Hit{{Key: []byte(key), Limit: lim, N: 1}}, make([]backend.Result, 1))
		}
	}
	take("a", limit.FixedWindow, 5)
	oneKeyBytes := l.Bytes()
	assert.Greater(t, oneKeyBytes, emptyBytes)
	take("a", limit.FixedWindow, 5)
	assert.Equal(t, oneKeyBytes, l.Bytes())
	take("b", limit.SlidingLog, 100)
	assert.InDelta(t, oneKeyBytes+100*bytesPerLogEntry, l.Bytes(), 1500, "the second key can need a block of its own")
}

package clienttest_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-81f232ab/rls/client"
	"github.com/seed-81f232ab/rls/client/clienttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const limits = `
domain: jobs
descriptors:
  - key: queue
    rate_limit: {unit: hour, requests_per_unit: 1}
`

var queue = client.NewDescriptor("queue", "reports")

func TestAdvanceEndsTheWaitOfAcquire(t *testing.T) {
	clock := clienttest.NewClock(time.Date(2026, 1, 1, 0, 30, 0, 0, time.UTC))
	c := clienttest.New(t, limits, clock)
	require.NoError(t, c.Acquire(t.Context(), "jobs", queue))
	var callerGroup sync.WaitGroup
	callerGroup.Go(func() { assert.NoError(t, c.Acquire(t.Context(), "jobs", queue)) })
	clock.WaitForTimers(1)
	clock.Advance(31 * time.Minute)
	callerGroup.Wait()
	assert.Equal(t, time.Date(2026, 1, 1, 1, 1, 0, 0, time.UTC), clock.Now())
}

func TestTimersEndAtTheirTimeUnlessStopped(t *testing.T) {
	clock := clienttest.NewClock(time.Unix(0, 0))
	lateTimer, stopLateTimer := clock.NewTimer(2 * time.Second)
	earlyTimer, _ := clock.NewTimer(time.Second)
	stoppedTimer, stopTimer := clock.NewTimer(time.Second)
	stopTimer()
	pastTimer, _ := clock.NewTimer(0)
	assert.Len(t, pastTimer, 1)
	clock.Advance(time.Second)
	assert.Len(t, earlyTimer, 1)
	assert.Empty(t, lateTimer)
	clock.Advance(time.Second)
	assert.Len(t, lateTimer, 1)
	assert.Empty(t, stoppedTimer)
	stopLateTimer()
}

func TestClientWithoutClockUsesTimeOfSynctest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clienttest.New(t, limits, nil)
		startTime := time.Now()
		for range 3 {
			require.NoError(t, c.Acquire(t.Context(), "jobs", queue))
		}
		assert.GreaterOrEqual(t, time.Since(startTime), 2*time.Hour)
	})
}

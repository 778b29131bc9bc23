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
	var work sync.WaitGroup
	work.Go(func() { assert.NoError(t, c.Acquire(t.Context(), "jobs", queue)) })
	clock.WaitForTimers(1)
	clock.Advance(31 * time.Minute)
	work.Wait()
	assert.Equal(t, time.Date(2026, 1, 1, 1, 1, 0, 0, time.UTC), clock.Now())
}

func TestTimersEndAtTheirTimeUnlessStopped(t *testing.T) {
	clock := clienttest.NewClock(time.Unix(0, 0))
	late, stopLate := clock.NewTimer(2 * time.Second)
	early, _ := clock.NewTimer(time.Second)
	stopped, stop := clock.NewTimer(time.Second)
	stop()
	past, _ := clock.NewTimer(0)
	assert.Len(t, past, 1)
	clock.Advance(time.Second)
	assert.Len(t, early, 1)
	assert.Empty(t, late)
	clock.Advance(time.Second)
	assert.Len(t, late, 1)
	assert.Empty(t, stopped)
	stopLate()
}

func TestClientWithoutClockUsesTimeOfSynctest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clienttest.New(t, limits, nil)
		begin := time.Now()
		for range 3 {
			require.NoError(t, c.Acquire(t.Context(), "jobs", queue))
		}
		assert.GreaterOrEqual(t, time.Since(begin), 2*time.Hour)
	})
}

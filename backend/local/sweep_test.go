package local

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/limit"
)

func sweepAll(l *Limiter, now time.Time) {
	for range l.stripes {
		l.Sweep(now)
	}
}

func TestSweepForgetsExpiredCounters(t *testing.T) {
	l := New(Options{})
	flood(l, noon, newHourLimit(t, limit.SlidingLog, 5), 1000)
	flood(l, noon, newLimit(t, limit.Spec{Requests: 5, Unit: limit.Day}), 2000)
	sweepAll(l, noon.Add(time.Hour-time.Microsecond))
	assert.Equal(t, 3000, l.Keys())
	sweepAll(l, noon.Add(time.Hour))
	assert.Equal(t, 2000, l.Keys())
	assert.Zero(t, l.memory.logWeight.Load())
	assert.Zero(t, l.Evictions(), "a sweep of expired counters counts no evictions")
}

func TestEachSweepFreesOneStripe(t *testing.T) {
	l, lim := New(Options{}), newHourLimit(t, limit.FixedWindow, 5)
	flood(l, noon, lim, 10_000)
	for range l.stripes {
		keysBefore := l.Keys()
		l.Sweep(noon.Add(time.Hour))
		assert.InDelta(t, 10_000/len(l.stripes), keysBefore-l.Keys(), 40)
	}
	assert.Zero(t, l.Keys())
}

// Logs lower the number of keys in all stripes. A stripe without traffic evicts keys only in a sweep.
func TestSweepEvictsKeysToMakeRoomForLogs(t *testing.T) {
	const maxKeys = 10_000
	l := New(Options{MaxKeys: maxKeys})
	flood(l, noon, newHourLimit(t, limit.FixedWindow, 5), maxKeys)
	lim := newHourLimit(t, limit.SlidingLog, 1_000_000)
	for i := range maxKeys * entriesPerKey / 2 {
		charge(l, noon.Add(time.Duration(i)*time.Microsecond), appendNumber(nil, maxKeys+i/2000), lim, 1)
	}
	require.Greater(t, int64(l.Keys())+l.memory.logWeight.Load(), int64(maxKeys))
	sweepAll(l, noon)
	assert.LessOrEqual(t, int64(l.Keys())+l.memory.logWeight.Load(), int64(maxKeys))
	assert.InDelta(t, maxKeys/2, l.Keys(), maxKeys/20)
}

func TestSweepFreesMemory(t *testing.T) {
	l := New(Options{MaxKeys: 1000})
	s := &l.stripes[0]
	flood(l, noon, newHourLimit(t, limit.FixedWindow, 5), 200)
	dayLimit := newLimit(t, limit.Spec{Requests: 5, Unit: limit.Day})
	for i := range 4 * len(l.stripes) {
		charge(l, noon, []byte{byte(i)}, dayLimit, 1)
	}
	entriesBefore := len(s.blocks) * blockSize
	sweepAll(l, noon.Add(time.Hour))
	assert.Less(t, len(s.blocks)*blockSize, entriesBefore/4)
	assert.Less(t, len(s.cells), entriesBefore/4)
	for i := range 4 * len(l.stripes) {
		assert.Equal(t, int64(4), charge(l, noon, []byte{byte(i)}, dayLimit, 0).Remaining)
	}
	sweepAll(l, noon.Add(48*time.Hour))
	assert.Nil(t, s.blocks)
}

func TestSweepsChangeNoAnswer(t *testing.T) {
	var limits []*limit.Limit
	for _, a := range limit.Algorithms() {
		limits = append(limits, newHourLimit(t, a, 4),
			newLimit(t, limit.Spec{Algorithm: a, Requests: 7, Unit: limit.Second, ChargeDenied: true}))
	}
	rapid.Check(t, func(t *rapid.T) {
		sweptLimiter, unsweptLimiter, now := New(Options{MaxKeys: 100}), New(Options{MaxKeys: 100}), noon
		for range rapid.IntRange(1, 50).Draw(t, "takes") {
			now = now.Add(time.Duration(rapid.OneOf(
				rapid.Int64Range(0, 2e6), rapid.Int64Range(0, 7200e6)).Draw(t, "microseconds")) * time.Microsecond)
			sweepAll(sweptLimiter, now)
			lim := rapid.SampledFrom(limits).Draw(t, "limit")
			n := rapid.Int64Range(-2, 5).Draw(t, "n")
			require.Equal(t, charge(unsweptLimiter, now, []byte("key"), lim, n), charge(sweptLimiter, now, []byte("key"), lim, n))
		}
	})
}

func TestRunSweepsAllStripesInItsIntervalUntilItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lim := New(Options{}), newHourLimit(t, limit.SlidingLog, 5)
		flood(l, time.Now(), lim, 10_000)
		time.Sleep(time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		runEnded := make(chan struct{})
		go func() {
			l.Run(ctx, time.Minute)
			close(runEnded)
		}()
		time.Sleep(30*time.Second + time.Millisecond)
		synctest.Wait()
		assert.InDelta(t, 5_000, l.Keys(), 500)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		assert.Zero(t, l.Keys())
		cancel()
		<-runEnded
	})
}

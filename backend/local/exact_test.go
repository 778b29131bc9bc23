package local

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

func TestSpendAtLeastRaisesAndNeverLowers(t *testing.T) {
	for _, a := range limit.Algorithms() {
		l, lim := New(Options{}), newHourLimit(t, a, 10)
		for _, step := range []struct{ n, want int64 }{{0, 0}, {4, 4}, {3, 4}, {4, 4}, {9, 9}, {-1, 9}, {10, 10}} {
			l.SpendAtLeast(noon, []byte("key"), lim, step.n)
			assert.Equal(t, step.want, lim.Spent(charge(l, noon, []byte("key"), lim, 0)), "%v: at least %d", a, step.n)
		}
	}
}

// The sample of an eviction starts at a random counter, so the test repeats each case often.
func TestEvictionChoosesTheLeastSpentThenTheFirstToExpire(t *testing.T) {
	hourLimit, dayLimit := newHourLimit(t, limit.FixedWindow, 9), newLimit(t, limit.Spec{Requests: 9, Unit: limit.Day})
	type counter struct {
		limit *limit.Limit
		n     int64
	}
	for _, test := range []struct {
		name         string
		counters     []counter
		evictedIndex int
	}{
		{"the least spent is first", []counter{{hourLimit, 1}, {hourLimit, 5}, {hourLimit, 6}}, 0},
		{"the least spent is last", []counter{{hourLimit, 6}, {hourLimit, 5}, {hourLimit, 1}}, 2},
		{"the least spent expires last", []counter{{hourLimit, 2}, {dayLimit, 1}, {hourLimit, 2}}, 1},
		{"the first to expire is first", []counter{{hourLimit, 2}, {dayLimit, 2}, {dayLimit, 2}}, 0},
		{"the first to expire is last", []counter{{dayLimit, 2}, {dayLimit, 2}, {hourLimit, 2}}, 2},
		{"the first to expire has spent most", []counter{{hourLimit, 3}, {dayLimit, 2}, {hourLimit, 4}}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			for range 20 {
				l := New(Options{MaxKeys: len(test.counters)})
				for i, c := range test.counters {
					charge(l, noon, []byte{byte(i)}, c.limit, c.n)
				}
				charge(l, noon, []byte("new"), dayLimit, 1)
				require.Equal(t, int64(1), l.Evictions())
				for i, c := range test.counters {
					want := c.n
					if i == test.evictedIndex {
						want = 0
					}
					require.Equal(t, want, c.limit.Spent(charge(l, noon, []byte{byte(i)}, c.limit, 0)), "counter %d", i)
				}
			}
		})
	}
}

// A log of one stripe lowers the bound of the other stripes, which then have too many keys.
func TestOnlyANewKeyEvictsAndItEvictsAtMostTwoKeys(t *testing.T) {
	const maxKeys = 1000
	l, lightLimit := New(Options{MaxKeys: maxKeys}), newHourLimit(t, limit.FixedWindow, 1000)
	require.Greater(t, len(l.stripes), 1)
	flood(l, noon, lightLimit, maxKeys)
	logLimit := newHourLimit(t, limit.SlidingLog, 1_000_000)
	for i := range maxKeys {
		charge(l, noon.Add(time.Duration(i)*time.Millisecond), []byte("log"), logLimit, 1)
	}
	evictions := l.Evictions()
	now := noon.Add(time.Second)
	for i := range maxKeys {
		key := appendNumber([]byte("flood"), i)
		if charge(l, now, key, lightLimit, 0).Remaining < 1000 {
			charge(l, now, key, lightLimit, 1)
			charge(l, now, key, lightLimit, -1)
		}
		charge(l, now, []byte("log"), logLimit, 0)
	}
	require.Equal(t, evictions, l.Evictions(), "a known key needs no room")
	shrinkCount := 0
	for i := range 40 {
		keysBefore := l.Keys()
		charge(l, now, fmt.Append(nil, "new", i), lightLimit, 1)
		change := l.Keys() - keysBefore
		assert.Contains(t, []int{-1, 0}, change, "one more key, and at most two fewer")
		shrinkCount -= change
	}
	assert.Positive(t, shrinkCount)
}

func TestSweepOfAFullLimiterEvictsNothing(t *testing.T) {
	for _, maxKeys := range []int{1, 10, 300} {
		l, lim := New(Options{MaxKeys: maxKeys}), newHourLimit(t, limit.FixedWindow, 5)
		flood(l, noon, lim, maxKeys)
		sweepAll(l, noon)
		assert.Equal(t, maxKeys, l.Keys())
	}
}

func TestSweepKeepsTheLastCounterOfEachStripe(t *testing.T) {
	l, dayLimit := New(Options{}), newLimit(t, limit.Spec{Requests: 5, Unit: limit.Day})
	flood(l, noon, newHourLimit(t, limit.FixedWindow, 5), 100*len(l.stripes))
	for i := range len(l.stripes) {
		charge(l, noon, fmt.Append(nil, i), dayLimit, 1)
	}
	sweepAll(l, noon.Add(time.Hour))
	assert.Equal(t, len(l.stripes), l.Keys())
	for i := range len(l.stripes) {
		assert.Equal(t, int64(4), charge(l, noon, fmt.Append(nil, i), dayLimit, 0).Remaining)
	}
}

func TestNewKeysAndSweepsAllocateRarely(t *testing.T) {
	for _, keys := range []int{1, 8, 9, 10, 40, 100, 200} {
		l, lim := New(Options{MaxKeys: 255}), newHourLimit(t, limit.FixedWindow, 5) // one stripe
		require.Len(t, l.stripes, 1)
		buf := make([]byte, 100)
		i := 0
		allocs := testing.AllocsPerRun(keys, func() {
			charge(l, noon, appendNumber(buf, i), lim, 1)
			i++
		})
		if keys >= 40 {
			assert.Less(t, allocs, 1.0, "for each of %d keys", keys)
		}
		l.Sweep(noon)
		assert.Zero(t, testing.AllocsPerRun(5, func() { l.Sweep(noon) }), "a sweep of %d keys", keys)
	}
	var statsBefore, statsAfter runtime.MemStats
	l, lim := New(Options{}), newHourLimit(t, limit.FixedWindow, 5)
	buf := make([]byte, 100)
	runtime.ReadMemStats(&statsBefore)
	for i := range 100_000 {
		charge(l, noon, appendNumber(buf, i), lim, 1)
	}
	runtime.ReadMemStats(&statsAfter)
	assert.Less(t, statsAfter.Mallocs-statsBefore.Mallocs, uint64(20_000))
}

// The numbers hold for a table with entries of 64 bytes, and with half to two thirds of its cells in use.
func TestBytesCountEntriesCellsAndLogs(t *testing.T) {
	growthPerKey := func(a limit.Algorithm, keys int) float64 {
		l, lim := New(Options{}), newHourLimit(t, a, 5)
		emptyBytes := l.Bytes()
		assert.GreaterOrEqual(t, emptyBytes, int64(128*len(l.stripes)))
		assert.Less(t, emptyBytes, int64(1024*len(l.stripes)))
		buf := make([]byte, 100)
		for i := range keys {
			charge(l, noon, appendNumber(buf, i), lim, 1)
		}
		assert.Equal(t, keys, l.Keys())
		return float64(l.Bytes()-emptyBytes) / float64(keys)
	}
	for _, keys := range []int{80_000, 120_000, 160_000, 200_000} {
		assert.InDelta(t, 64+8*1.75, growthPerKey(limit.FixedWindow, keys), 6, "%d keys", keys)
	}
	windowBytes, logBytes := growthPerKey(limit.FixedWindow, 100_000), growthPerKey(limit.SlidingLog, 100_000)
	assert.InDelta(t, windowBytes+entriesPerKey*bytesPerLogEntry+8*1.25, logBytes, 3, "a log is also in a list of pointers")
}

func TestResetByPrefixFailsWhileTooManyResetsAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{})
		hourLimit, dayLimit := newHourLimit(t, limit.SlidingLog, 100), newLimit(t, limit.Spec{Algorithm: limit.SlidingLog, Requests: 100, Unit: limit.Day})
		charge(l, time.Now(), []byte("d|day"), dayLimit, 1)
		charge(l, time.Now(), []byte("d|hour"), hourLimit, 1)
		reset := func(name string) error {
			_, err := l.ResetPrefix(t.Context(), backend.KeyPrefix{Start: "e|" + name}, 1, false)
			return err
		}
		require.NoError(t, reset("first"))
		charge(l, time.Now(), []byte("d|day"), dayLimit, -1) // only the counter of an hour is left
		for i := range maxResets - 1 {
			require.NoError(t, reset(fmt.Sprint(i)))
		}
		require.ErrorContains(t, reset("one more"), "until the oldest counters end in 1h0m0s;")
		require.NoError(t, reset("3"), "the same prefix again is no further reset")
		time.Sleep(time.Hour - time.Microsecond)
		require.ErrorContains(t, reset("one more"), "until the oldest counters end in 1µs;")
		time.Sleep(time.Microsecond)
		require.NoError(t, reset("one more"))
	})
}

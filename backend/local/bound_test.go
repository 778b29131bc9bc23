package local

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/limit"
)

// flood charges one hit to each of n new keys.
func flood(l *Limiter, now time.Time, lim *limit.Limit, n int) {
	buf := []byte("flood")
	for i := range n {
		charge(l, now, appendNumber(buf, i), lim, 1)
	}
}

func TestKeysStayWithinMaxKeys(t *testing.T) {
	for _, maxKeys := range []int{1, 2, 10, 100, 1000, 10_000, 20_000} {
		t.Run(fmt.Sprint(maxKeys), func(t *testing.T) {
			l, lim := New(Options{MaxKeys: maxKeys}), newHourLimit(t, limit.FixedWindow, 5)
			buf := []byte{}
			for i := range 3 * maxKeys {
				buf = appendNumber(buf, i)
				charge(l, noon, buf, lim, 1)
				if i%(maxKeys/10+1) == 0 {
					require.LessOrEqual(t, l.Keys(), maxKeys)
				}
			}
			assert.LessOrEqual(t, l.Keys(), maxKeys)
			assert.Greater(t, l.Keys(), maxKeys*9/10, "almost the whole bound is used")
			assert.Equal(t, int64(3*maxKeys-l.Keys()), l.Evictions())
		})
	}
}

func TestSmallBoundIsUsedCompletely(t *testing.T) {
	for _, maxKeys := range []int{1, 10, 300} {
		l, lim := New(Options{MaxKeys: maxKeys}), newHourLimit(t, limit.FixedWindow, 5)
		for range 2 {
			flood(l, noon, lim, maxKeys)
		}
		assert.Equal(t, maxKeys, l.Keys())
		assert.Zero(t, l.Evictions())
	}
}

func TestMaxKeysHasDefaultAndNoUpperBound(t *testing.T) {
	assert.Equal(t, int64(DefaultMaxKeys), New(Options{}).memory.maxKeys)
	assert.Equal(t, int64(DefaultMaxKeys), New(Options{MaxKeys: -5}).memory.maxKeys)
	l := New(Options{MaxKeys: math.MaxInt})
	assert.Len(t, l.stripes, maxStripes)
	assert.True(t, charge(l, noon, nil, newHourLimit(t, limit.FixedWindow, 5), 1).Allowed)
	assert.Equal(t, 1, l.Keys())
}

func TestFloodDoesNotEvictCallerAtItsLimit(t *testing.T) {
	for _, a := range limit.Algorithms() {
		for _, maxKeys := range []int{10, 300, 2_000} {
			t.Run(fmt.Sprintf("%v, %d keys", a, maxKeys), func(t *testing.T) {
				l, lim := New(Options{MaxKeys: maxKeys}), newHourLimit(t, a, 5)
				heavyKey := []byte("heavy")
				require.True(t, charge(l, noon, heavyKey, lim, 5).Allowed)
				for i := range 10 * maxKeys {
					charge(l, noon, appendNumber([]byte("flood"), i), lim, 1)
					if i%(maxKeys/2) == 0 {
						require.False(t, charge(l, noon.Add(time.Minute), heavyKey, lim, 1).Allowed, "after %d keys", i)
					}
				}
				assert.False(t, charge(l, noon.Add(time.Minute), heavyKey, lim, 1).Allowed)
				assert.Greater(t, l.Evictions(), int64(8*maxKeys), "the flood exceeds the bound")
			})
		}
	}
}

// The counters of many callers at their limits stay too, if more callers have spent less.
func TestFloodDoesNotEvictManyCallersAtTheirLimits(t *testing.T) {
	const maxKeys, heavyCallers = 20_000, 2_000
	l, lim := New(Options{MaxKeys: maxKeys}), newHourLimit(t, limit.FixedWindow, 5)
	for i := range heavyCallers {
		charge(l, noon, fmt.Appendf(nil, "heavy %d", i), lim, 5)
	}
	flood(l, noon, lim, 10*maxKeys)
	forgottenKeys := 0
	for i := range heavyCallers {
		if charge(l, noon, fmt.Appendf(nil, "heavy %d", i), lim, 1).Allowed {
			forgottenKeys++
		}
	}
	assert.LessOrEqual(t, forgottenKeys, heavyCallers/100)
}

func TestExpiredKeysAreEvictedFirst(t *testing.T) {
	const maxKeys = sampleSize - 1 // the sample then holds all keys and the new one
	l, lim := New(Options{MaxKeys: maxKeys}), newHourLimit(t, limit.FixedWindow, 5)
	for i := range maxKeys / 2 {
		charge(l, noon, fmt.Appendf(nil, "old %d", i), lim, 5)
	}
	laterTime := noon.Add(time.Hour)
	for i := range maxKeys {
		charge(l, laterTime, fmt.Appendf(nil, "new %d", i), lim, 1)
	}
	assert.Equal(t, maxKeys, l.Keys())
	assert.Zero(t, l.Evictions())
	for i := range maxKeys {
		assert.Equal(t, int64(3), charge(l, laterTime, fmt.Appendf(nil, "new %d", i), lim, 1).Remaining)
	}
}

func TestCounterThatExpiresFirstIsEvictedIfAllHaveSpentTheSame(t *testing.T) {
	l := New(Options{MaxKeys: 2})
	hourLimit := newHourLimit(t, limit.FixedWindow, 5)
	dayLimit := newLimit(t, limit.Spec{Requests: 5, Unit: limit.Day})
	charge(l, noon, []byte("a"), dayLimit, 1)
	charge(l, noon, []byte("b"), hourLimit, 1)
	charge(l, noon, []byte("c"), dayLimit, 1)
	assert.Equal(t, int64(4), charge(l, noon, []byte("a"), dayLimit, 0).Remaining)
	assert.Equal(t, int64(5), charge(l, noon, []byte("b"), hourLimit, 0).Remaining)
}

// If a new key were evicted at once, no new caller would be counted while all other callers are at
// their limits.
func TestNewKeyIsKeptAmongKeysAtTheirLimits(t *testing.T) {
	for _, maxKeys := range []int{1, 2, 5, 1000} {
		l, lim := New(Options{MaxKeys: maxKeys}), newHourLimit(t, limit.FixedWindow, 5)
		for i := range maxKeys {
			charge(l, noon, appendNumber(nil, i), lim, 5)
		}
		charge(l, noon, []byte("new key"), lim, 1)
		assert.Equal(t, int64(3), charge(l, noon, []byte("new key"), lim, 1).Remaining, "MaxKeys %d", maxKeys)
	}
}

func TestKeysWithNothingSpentUseNoMemory(t *testing.T) {
	for _, a := range limit.Algorithms() {
		t.Run(a.String(), func(t *testing.T) {
			l, lim, key := New(Options{}), newHourLimit(t, a, 5), []byte("key")
			charge(l, noon, key, lim, 0)
			charge(l, noon, key, lim, -3)
			assert.Zero(t, l.Keys())
			charge(l, noon, key, lim, 3)
			assert.Equal(t, 1, l.Keys())
			charge(l, noon, key, lim, -3)
			assert.Zero(t, l.Keys())
			assert.Zero(t, l.memory.logWeight.Load())
		})
	}
}

func TestLogsReduceTheNumberOfKeys(t *testing.T) {
	const maxKeys = 1000
	l, lim := New(Options{MaxKeys: maxKeys}), newHourLimit(t, limit.SlidingLog, 1_000_000)
	smallLimit := newHourLimit(t, limit.FixedWindow, 5)
	flood(l, noon, smallLimit, maxKeys)
	keysBefore := l.Keys()
	for i := range maxKeys { // these logs count as a quarter of the keys
		charge(l, noon.Add(time.Duration(i)*time.Millisecond), []byte("log"), lim, 1)
	}
	assert.Equal(t, int64(maxKeys/entriesPerKey), l.memory.logWeight.Load())
	flood(l, noon, smallLimit, 5*maxKeys)
	assert.InDelta(t, keysBefore*3/4, l.Keys(), maxKeys/10)
	assert.Equal(t, int64(1_000_000-maxKeys), charge(l, noon.Add(time.Second), []byte("log"), lim, 0).Remaining, "the log is still whole")

	charge(l, noon.Add(time.Second), []byte("log"), lim, -maxKeys)
	assert.Zero(t, l.memory.logWeight.Load())
}

// A Limiter with one stripe keeps the bound after each Take.
func TestKeysAndLogsTogetherStayWithinMaxKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		maxKeys := rapid.IntRange(1, 40).Draw(t, "MaxKeys")
		l := New(Options{MaxKeys: maxKeys})
		limits := []*limit.Limit{newHourLimit(t, limit.SlidingLog, 20), newHourLimit(t, limit.SlidingLog, 1000), newHourLimit(t, limit.FixedWindow, 5)}
		now := noon
		for range rapid.IntRange(1, 300).Draw(t, "takes") {
			now = now.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "seconds")) * time.Second)
			key := []byte{byte(rapid.IntRange(0, 60).Draw(t, "key"))}
			charge(l, now, key, rapid.SampledFrom(limits).Draw(t, "limit"), rapid.SampledFrom([]int64{1, 1, 1, 1, 3, -2}).Draw(t, "n"))

			var logs int64
			for i := range l.stripes[0].size {
				state := l.stripes[0].stateOf(l.stripes[0].entryAt(i))
				logs += logWeight(&state)
			}
			require.Equal(t, logs, l.memory.logWeight.Load())
			if l.Keys() > 1 {
				require.LessOrEqual(t, int64(l.Keys())+logs, int64(maxKeys))
			}
		}
	})
}

func TestLogsAreBoundedInMemory(t *testing.T) {
	const maxKeys = 10_000
	var statsBefore, statsAfter runtime.MemStats
	runtime.GC()
	runtime.GC() // the second run frees the memory of pools
	runtime.ReadMemStats(&statsBefore)
	l, lim := New(Options{MaxKeys: maxKeys}), newHourLimit(t, limit.SlidingLog, 1000)
	var buf []byte
	for i := range 200_000 { // the logs of 1,000 keys with 200 hits count as 50,000 keys
		buf = appendNumber(buf, i%1000)
		charge(l, noon.Add(time.Duration(i)*time.Microsecond), buf, lim, 1)
	}
	sweepAll(l, noon)
	runtime.GC()
	runtime.ReadMemStats(&statsAfter)
	assert.LessOrEqual(t, int64(l.Keys())+l.memory.logWeight.Load(), int64(maxKeys))
	heapGrowth := int64(statsAfter.HeapAlloc) - int64(statsBefore.HeapAlloc) // may be negative
	assert.Less(t, float64(heapGrowth)/maxKeys, 150.0, "bytes for each of MaxKeys")
}

func TestBoundIsKeptUnderConcurrency(t *testing.T) {
	const maxKeys = 2000
	l := New(Options{MaxKeys: maxKeys})
	limits := []*limit.Limit{newHourLimit(t, limit.SlidingLog, 100), newHourLimit(t, limit.FixedWindow, 100)}
	var callers sync.WaitGroup
	for caller := range 8 {
		callers.Go(func() {
			var buf []byte
			for i := range 3000 {
				buf = appendNumber(buf, (i*(caller+1))%(3*maxKeys))
				charge(l, noon.Add(time.Duration(i)), buf, limits[i%2], 1)
				if i%500 == 0 {
					l.Sweep(noon)
					assert.LessOrEqual(t, l.Keys(), maxKeys)
				}
			}
		})
	}
	callers.Wait()
	sweepAll(l, noon)
	assert.LessOrEqual(t, int64(l.Keys())+l.memory.logWeight.Load(), int64(maxKeys))
}

// Without the bound, the log would take 16 MB.
func TestOneLogIsBoundedInMemory(t *testing.T) {
	l, lim := New(Options{}), newHourLimit(t, limit.SlidingLog, 10_000_000)
	var statsBefore, statsAfter runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&statsBefore)
	for i := range 200_000 {
		charge(l, noon.Add(time.Duration(i)*time.Millisecond), []byte("key"), lim, 1)
	}
	runtime.GC()
	runtime.ReadMemStats(&statsAfter)
	assert.Less(t, int64(statsAfter.HeapAlloc)-int64(statsBefore.HeapAlloc), int64(1<<20))
	assert.LessOrEqual(t, l.memory.logWeight.Load(), int64(limit.MaxLogEntries/entriesPerKey))
}

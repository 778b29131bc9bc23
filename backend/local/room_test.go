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

// flood charges n keys that nobody else uses, a hit each.
func flood(l *Limiter, now time.Time, lim *limit.Limit, n int) {
	buf := []byte("flood")
	for i := range n {
		charge(l, now, numbered(buf, i), lim, 1)
	}
}

func TestKeysAreNeverMoreThanMaxKeys(t *testing.T) {
	for _, most := range []int{1, 2, 10, 100, 1000, 10_000, 20_000} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			l, lim := New(Options{MaxKeys: most}), hourly(t, limit.FixedWindow, 5)
			buf := []byte{}
			for i := range 3 * most {
				buf = numbered(buf, i)
				charge(l, noon, buf, lim, 1)
				if i%(most/10+1) == 0 {
					require.LessOrEqual(t, l.Len(), most)
				}
			}
			assert.LessOrEqual(t, l.Len(), most)
			assert.Greater(t, l.Len(), most*9/10, "no room is wasted")
			assert.Equal(t, int64(3*most-l.Len()), l.Dropped())
		})
	}
}

func TestSmallBoundsAreUsedToTheLast(t *testing.T) {
	for _, most := range []int{1, 10, 300} {
		l, lim := New(Options{MaxKeys: most}), hourly(t, limit.FixedWindow, 5)
		for range 2 {
			flood(l, noon, lim, most)
		}
		assert.Equal(t, most, l.Len())
		assert.Zero(t, l.Dropped())
	}
}

func TestOddBounds(t *testing.T) {
	assert.Equal(t, int64(DefaultMaxKeys), New(Options{}).room.most)
	assert.Equal(t, int64(DefaultMaxKeys), New(Options{MaxKeys: -5}).room.most)
	l := New(Options{MaxKeys: math.MaxInt})
	assert.Len(t, l.shards, mostShards)
	assert.True(t, charge(l, noon, nil, hourly(t, limit.FixedWindow, 5), 1).Allowed)
	assert.Equal(t, 1, l.Len())
}

func TestACallerAtItsLimitStaysDeniedInAFlood(t *testing.T) {
	for _, a := range limit.Algorithms() {
		for _, most := range []int{10, 300, 5_000} {
			t.Run(fmt.Sprintf("%v, %d keys", a, most), func(t *testing.T) {
				l, lim := New(Options{MaxKeys: most}), hourly(t, a, 5)
				heavy := []byte("heavy")
				require.True(t, charge(l, noon, heavy, lim, 5).Allowed)
				for i := range 20 * most {
					charge(l, noon, numbered([]byte("flood"), i), lim, 1)
					if i%(most/2) == 0 {
						require.False(t, charge(l, noon.Add(time.Minute), heavy, lim, 1).Allowed, "after %d keys", i)
					}
				}
				assert.False(t, charge(l, noon.Add(time.Minute), heavy, lim, 1).Allowed)
				assert.Greater(t, l.Dropped(), int64(18*most), "the flood is larger than the room")
			})
		}
	}
}

// Many callers at their limits are safe as well, as long as light ones are more.
func TestManyCallersAtTheirLimitsStayDeniedInAFlood(t *testing.T) {
	const most, heavies = 20_000, 2_000
	l, lim := New(Options{MaxKeys: most}), hourly(t, limit.FixedWindow, 5)
	for i := range heavies {
		charge(l, noon, fmt.Appendf(nil, "heavy %d", i), lim, 5)
	}
	flood(l, noon, lim, 20*most)
	forgotten := 0
	for i := range heavies {
		if charge(l, noon, fmt.Appendf(nil, "heavy %d", i), lim, 1).Allowed {
			forgotten++
		}
	}
	assert.LessOrEqual(t, forgotten, heavies/100)
}

func TestExpiredKeysAreDroppedBeforeLiveOnes(t *testing.T) {
	const most = sample - 1 // so that each is in the sample, with the new one
	l, lim := New(Options{MaxKeys: most}), hourly(t, limit.FixedWindow, 5)
	for i := range most / 2 {
		charge(l, noon, fmt.Appendf(nil, "old %d", i), lim, 5)
	}
	later := noon.Add(time.Hour)
	for i := range most {
		charge(l, later, fmt.Appendf(nil, "new %d", i), lim, 1)
	}
	assert.Equal(t, most, l.Len())
	assert.Zero(t, l.Dropped())
	for i := range most {
		assert.Equal(t, int64(3), charge(l, later, fmt.Appendf(nil, "new %d", i), lim, 1).Remaining)
	}
}

func TestOfEqualKeysTheFirstToExpireIsDropped(t *testing.T) {
	l := New(Options{MaxKeys: 2})
	hour := hourly(t, limit.FixedWindow, 5)
	day := newLimit(t, limit.Spec{Requests: 5, Unit: limit.Day})
	charge(l, noon, []byte("a"), day, 1)
	charge(l, noon, []byte("b"), hour, 1)
	charge(l, noon, []byte("c"), day, 1)
	assert.Equal(t, int64(4), charge(l, noon, []byte("a"), day, 0).Remaining)
	assert.Equal(t, int64(5), charge(l, noon, []byte("b"), hour, 0).Remaining)
}

// Else a full house of heavy callers would let all others pass for ever.
func TestANewcomerIsRememberedHoweverHeavyTheOthers(t *testing.T) {
	for _, most := range []int{1, 2, 5, 1000} {
		l, lim := New(Options{MaxKeys: most}), hourly(t, limit.FixedWindow, 5)
		for i := range most {
			charge(l, noon, numbered(nil, i), lim, 5)
		}
		charge(l, noon, []byte("newcomer"), lim, 1)
		assert.Equal(t, int64(3), charge(l, noon, []byte("newcomer"), lim, 1).Remaining, "MaxKeys %d", most)
	}
}

func TestKeysWithNothingSpentAreNotHeld(t *testing.T) {
	for _, a := range limit.Algorithms() {
		t.Run(a.String(), func(t *testing.T) {
			l, lim, key := New(Options{}), hourly(t, a, 5), []byte("key")
			charge(l, noon, key, lim, 0)
			charge(l, noon, key, lim, -3)
			assert.Zero(t, l.Len())
			charge(l, noon, key, lim, 3)
			assert.Equal(t, 1, l.Len())
			charge(l, noon, key, lim, -3)
			assert.Zero(t, l.Len())
			assert.Zero(t, l.room.logs.Load())
		})
	}
}

func TestLogsTakeRoomFromKeys(t *testing.T) {
	const most = 1000
	l, lim := New(Options{MaxKeys: most}), hourly(t, limit.SlidingLog, 1_000_000)
	light := hourly(t, limit.FixedWindow, 5)
	flood(l, noon, light, most)
	held := l.Len()
	for i := range most { // a quarter as much
		charge(l, noon.Add(time.Duration(i)*time.Millisecond), []byte("log"), lim, 1)
	}
	assert.Equal(t, int64(most/entriesPerKey), l.room.logs.Load())
	flood(l, noon, light, 5*most)
	assert.InDelta(t, held*3/4, l.Len(), most/10)
	assert.Equal(t, int64(1_000_000-most), charge(l, noon.Add(time.Second), []byte("log"), lim, 0).Remaining, "the log is still whole")

	charge(l, noon.Add(time.Second), []byte("log"), lim, -most)
	assert.Zero(t, l.room.logs.Load())
}

// With one shard the bound holds after each Take: there is nobody to wait for.
func TestKeysAndLogsTogetherStayWithinMaxKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 40).Draw(t, "MaxKeys")
		l := New(Options{MaxKeys: most, AllOrNone: rapid.Bool().Draw(t, "AllOrNone")})
		limits := []*limit.Limit{hourly(t, limit.SlidingLog, 20), hourly(t, limit.SlidingLog, 1000), hourly(t, limit.FixedWindow, 5)}
		now := noon
		for range rapid.IntRange(1, 300).Draw(t, "takes") {
			now = now.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "seconds")) * time.Second)
			key := []byte{byte(rapid.IntRange(0, 60).Draw(t, "key"))}
			charge(l, now, key, rapid.SampledFrom(limits).Draw(t, "limit"), rapid.SampledFrom([]int64{1, 1, 1, 1, 3, -2}).Draw(t, "n"))

			var logs int64
			for i := range l.shards[0].entries {
				logs += weight(&l.shards[0].entries[i].state)
			}
			require.Equal(t, logs, l.room.logs.Load())
			if l.Len() > 1 {
				require.LessOrEqual(t, int64(l.Len())+logs, int64(most))
			}
		}
	})
}

func TestLogsAreBoundedInMemory(t *testing.T) {
	const most = 20_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC() // what pools held goes with the second
	runtime.ReadMemStats(&before)
	l, lim := New(Options{MaxKeys: most}), hourly(t, limit.SlidingLog, 1000)
	var buf []byte
	for i := range 400_000 { // 200 hits of each of 2,000 keys: 100,000 keys' weight
		buf = numbered(buf, i%2000)
		charge(l, noon.Add(time.Duration(i)*time.Microsecond), buf, lim, 1)
	}
	sweepAll(l, noon)
	runtime.GC()
	runtime.ReadMemStats(&after)
	assert.LessOrEqual(t, int64(l.Len())+l.room.logs.Load(), int64(most))
	grown := int64(after.HeapAlloc) - int64(before.HeapAlloc) // which can be less than 0
	assert.Less(t, float64(grown)/most, 150.0, "bytes for each of MaxKeys")
}

func TestRoomHoldsUnderConcurrency(t *testing.T) {
	const most = 2000
	for _, allOrNone := range []bool{false, true} {
		l := New(Options{MaxKeys: most, AllOrNone: allOrNone})
		limits := []*limit.Limit{hourly(t, limit.SlidingLog, 100), hourly(t, limit.FixedWindow, 100)}
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				var buf []byte
				for i := range 3000 {
					buf = numbered(buf, (i*(g+1))%(3*most))
					charge(l, noon.Add(time.Duration(i)), buf, limits[i%2], 1)
					if i%500 == 0 {
						l.Sweep(noon)
						assert.LessOrEqual(t, l.Len(), most)
					}
				}
			})
		}
		wg.Wait()
		sweepAll(l, noon)
		assert.LessOrEqual(t, int64(l.Len())+l.room.logs.Load(), int64(most))
	}
}

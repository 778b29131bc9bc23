package backendtest

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// RunPast checks that what was spent survives reloads: that a counter of a limit
// with a Past has spent what those of its Past have. open is as for Run.
func RunPast(t *testing.T, open func(t *testing.T) backend.Limiter) {
	t.Run("what was spent under another algorithm is carried over", func(t *testing.T) { testCarriedOver(t, open(t)) })
	t.Run("another window starts with what was spent", func(t *testing.T) { testOtherWindow(t, open(t)) })
	t.Run("what is given back under the new limit stays given back", func(t *testing.T) { testGivenBack(t, open(t)) })
	t.Run("giving back all that can be leaves nothing spent", func(t *testing.T) { testReset(t, open(t)) })
	t.Run("between windows the moment of the change is covered", func(t *testing.T) { testMomentOfChange(t, open(t)) })
	t.Run("between windows no sequence of reloads lets a limit admit more than alone", func(t *testing.T) { testWindows(t, open(t)) })
	t.Run("a sliding_window that is away for a while has not forgotten", func(t *testing.T) { testSlidingWindowBack(t, open(t)) })
	t.Run("64 callers carry over once", func(t *testing.T) { testCarriedOverOnce(t, open(t)) })
	t.Run("a log that is lowered and raised again forgets nothing", func(t *testing.T) { testLogRaisedAgain(t, open(t)) })
	t.Run("no sequence of reloads admits more than the largest limit", func(t *testing.T) { testReloads(t, open(t), false) })
	t.Run("a burst that is lowered and raised admits at most the difference again", func(t *testing.T) { testReloads(t, open(t), true) })
}

func testCarriedOver(t *testing.T, l backend.Limiter) {
	pairs(t, func(t *testing.T, was, now *limit.Limit, start time.Time, key []byte) {
		back := was.After(now, start.UnixMicro())
		take(t, l, start, 0, backend.Hit{Key: key, Limit: was, N: 7})
		assertTake(t, l, start, backend.Hit{Key: key, Limit: now, N: 0}, true, 13)
		assertTake(t, l, start, backend.Hit{Key: key, Limit: now, N: 1}, true, 12)
		assertTake(t, l, start, backend.Hit{Key: key, Limit: now, N: 12}, true, 0)
		assertTake(t, l, start, backend.Hit{Key: key, Limit: back, N: 1}, false, 0)

		unknown := Key()
		assertTake(t, l, start, backend.Hit{Key: unknown, Limit: now, N: 20}, true, 0)

		// Both of one Take, the past counter still in use by it.
		both := take(t, l, start, 0, backend.Hit{Key: key, Limit: was, N: -5}, backend.Hit{Key: key, Limit: now, N: 1})
		assert.Equal(t, []bool{true, false}, []bool{both[0].Allowed, both[1].Allowed})
	})
}

func testOtherWindow(t *testing.T, l backend.Limiter) {
	start, key := Start(), Key()
	hour := NewLimit(t, limit.Spec{Unit: limit.Hour, Requests: 10})
	day := NewLimit(t, limit.Spec{Unit: limit.Day, Requests: 100}).After(hour, start.UnixMicro())
	few := NewLimit(t, limit.Spec{Unit: limit.Hour, Multiplier: 2, Requests: 4}).After(day, start.UnixMicro())
	take(t, l, start, 0, backend.Hit{Key: key, Limit: hour, N: 7})
	assertTake(t, l, start, backend.Hit{Key: key, Limit: day, N: 1}, true, 92)
	assertTake(t, l, start, backend.Hit{Key: key, Limit: few, N: 0}, true, 0)
	assertTake(t, l, start, backend.Hit{Key: key, Limit: few, N: 1}, false, 0)
}

// pairs calls f for each two algorithms, as limits per hour: was admits 10, now 20
// in its place. No one has used key.
func pairs(t *testing.T, f func(t *testing.T, was, now *limit.Limit, start time.Time, key []byte)) {
	for _, was := range perHour(t, 10, false) {
		for _, is := range perHour(t, 20, false) {
			if was.Algorithm != is.Algorithm {
				t.Run(fmt.Sprintf("%s to %s", was.Algorithm, is.Algorithm), func(t *testing.T) {
					start := Start()
					f(t, was, is.After(was, start.UnixMicro()), start, Key())
				})
			}
		}
	}
}

func testGivenBack(t *testing.T, l backend.Limiter) {
	pairs(t, func(t *testing.T, was, now *limit.Limit, start time.Time, key []byte) {
		take(t, l, start, 0, backend.Hit{Key: key, Limit: was, N: 7})
		assertTake(t, l, start, backend.Hit{Key: key, Limit: now, N: 3}, true, 10)

		// First what was charged since the change,
		assertTake(t, l, start, backend.Hit{Key: key, Limit: now, N: -2}, true, 12)
		assertTake(t, l, start, backend.Hit{Key: key, Limit: now, N: 0}, true, 12)
		assertTake(t, l, start, backend.Hit{Key: key, Limit: was, N: 0}, true, 3)

		// then what was before.
		assertTake(t, l, start, backend.Hit{Key: key, Limit: now, N: -4}, true, 16)
		assertTake(t, l, start, backend.Hit{Key: key, Limit: now, N: 0}, true, 16)
		assertTake(t, l, start, backend.Hit{Key: key, Limit: was, N: 0}, true, 6)

		// Of a debt under the new limit no more than is given back.
		few := NewLimit(t, limit.Spec{Unit: limit.Hour, Multiplier: 2, Requests: 2}).After(was, start.UnixMicro())
		assertTake(t, l, start, backend.Hit{Key: key, Limit: few, N: -1}, true, 1)
		assertTake(t, l, start, backend.Hit{Key: key, Limit: few, N: 0}, true, 0)
		assertTake(t, l, start, backend.Hit{Key: key, Limit: was, N: 0}, true, 7)
	})
}

func testReset(t *testing.T, l backend.Limiter) {
	pairs(t, func(t *testing.T, was, now *limit.Limit, start time.Time, key []byte) {
		reset := []backend.Hit{{Key: key, Limit: now, N: -limit.MaxHits}}
		for _, p := range now.Past(start.UnixMicro(), nil) {
			reset = append(reset, backend.Hit{Key: key, Limit: p.Limit, N: -limit.MaxHits})
		}
		for range 2 {
			take(t, l, start, 0, backend.Hit{Key: key, Limit: was, N: 10})
			take(t, l, start, 0, backend.Hit{Key: key, Limit: now, N: 5})
			take(t, l, start, 0, reset...)
			assertTake(t, l, start, backend.Hit{Key: key, Limit: now, N: 0}, true, 20)
			assertTake(t, l, start, backend.Hit{Key: key, Limit: was, N: 0}, true, 10)
			reset = reset[:1] // that of the limit in force is enough
		}
	})
}

// testMomentOfChange shows what holds between limits of different windows: the new
// one starts with what the old one says is spent, and then each admits what it
// would alone.
func testMomentOfChange(t *testing.T, l backend.Limiter) {
	start, key := Start(), Key()
	day := NewLimit(t, limit.Spec{Unit: limit.Day, Requests: 1000})
	minute := NewLimit(t, limit.Spec{Unit: limit.Minute, Requests: 10}).After(day, start.UnixMicro())
	takeAt := func(at time.Duration, lim *limit.Limit, n int64) bool {
		return take(t, l, start, at, backend.Hit{Key: key, Limit: lim, N: n})[0].Allowed
	}
	require.True(t, takeAt(0, day, 800))
	assert.False(t, takeAt(0, minute, 1))
	assert.True(t, takeAt(time.Minute, minute, 10))
	assert.False(t, takeAt(time.Minute, minute, 1))
	assert.True(t, takeAt(2*time.Minute, minute, 10))

	again := day.After(minute, start.Add(2*time.Minute).UnixMicro())
	assert.True(t, takeAt(2*time.Minute, again, 200), "what the minutes admitted, the day's own count doesn't know")
	assert.False(t, takeAt(2*time.Minute, again, 1))

	other, longer := Key(), NewLimit(t, limit.Spec{Unit: limit.Day, Requests: 1000, Algorithm: limit.SlidingLog}).After(minute, start.Add(time.Minute).UnixMicro())
	take(t, l, start, 0, backend.Hit{Key: other, Limit: minute, N: 10})
	take(t, l, start, time.Minute, backend.Hit{Key: other, Limit: minute, N: 4})
	left := take(t, l, start, time.Minute, backend.Hit{Key: other, Limit: longer, N: 0})[0].Remaining
	assert.EqualValues(t, 996, left, "of a shorter window only what it still knows")
}

// testSlidingWindowBack spends a window's hits, has another algorithm admit hits in the
// next one, and is back: the two together admit one window's hits in that one.
func testSlidingWindowBack(t *testing.T, l backend.Limiter) {
	for _, other := range perHour(t, 10, false) {
		if other.Algorithm == limit.SlidingWindow {
			continue
		}
		t.Run(other.Algorithm.String(), func(t *testing.T) {
			start, key := Start(), Key()
			admitted := 0
			askFor := func(lim *limit.Limit, from, to time.Duration) {
				for at := from; at < to; at += time.Minute {
					for take(t, l, start, at, backend.Hit{Key: key, Limit: lim, N: 1})[0].Allowed {
						admitted++
					}
				}
			}
			window := NewLimit(t, limit.Spec{Algorithm: limit.SlidingWindow, Unit: limit.Hour, Requests: 10})
			askFor(window, time.Minute, 2*time.Minute)
			require.Equal(t, 10, admitted)
			between := other.After(window, start.Add(2*time.Minute).UnixMicro())
			admitted = 0
			askFor(between, 63*time.Minute, 64*time.Minute)
			askFor(window.After(between, start.Add(64*time.Minute).UnixMicro()), 64*time.Minute, 120*time.Minute)
			assert.LessOrEqual(t, admitted, 10)
		})
	}
}

func testCarriedOverOnce(t *testing.T, l backend.Limiter) {
	pairs(t, func(t *testing.T, was, now *limit.Limit, start time.Time, key []byte) {
		take(t, l, start, 0, backend.Hit{Key: key, Limit: was, N: 7})
		var admitted atomic.Int64
		crowd(func(int) {
			for range 2 {
				if r, err := quietTake(l, start, backend.Hit{Key: key, Limit: now, N: 1}); assert.NoError(t, err) && r[0].Allowed {
					admitted.Add(1)
				}
			}
		})
		assert.EqualValues(t, 13, admitted.Load())
	})
}

// testLogRaisedAgain has denied hits outweigh the admitted ones while the limit is
// lower. (They are Shadow, so that they are charged where a Take charges all or
// none, too.)
func testLogRaisedAgain(t *testing.T, l backend.Limiter) {
	start, key := Start(), Key()
	hour := func(requests uint32) *limit.Limit {
		return NewLimit(t, limit.Spec{Algorithm: limit.SlidingLog, Requests: requests, Unit: limit.Hour, ChargeDenied: true})
	}
	large := hour(10)
	small := hour(2).After(large, start.UnixMicro())
	assertTake(t, l, start, backend.Hit{Key: key, Limit: large, N: 10}, true, 0)
	for at := range 5 {
		denied := backend.Hit{Key: key, Limit: small, N: 1, Shadow: true}
		assert.False(t, take(t, l, start, time.Duration(at+1)*time.Minute, denied)[0].Allowed)
	}
	again := large.After(small, start.Add(6*time.Minute).UnixMicro())
	assert.EqualValues(t, -5, take(t, l, start, 6*time.Minute, backend.Hit{Key: key, Limit: again})[0].Remaining)
	assert.EqualValues(t, 5, take(t, l, start, time.Hour, backend.Hit{Key: key, Limit: again})[0].Remaining, "the denied ones are charged")
}

// testReloads has one key charged under limits per hour that change at random, for
// less than that hour. Only a token bucket refills in that time; where it has a
// burst of its own, it may forget as much as its capacity is lowered by.
func testReloads(t *testing.T, l backend.Limiter, bursts bool) {
	const most = 20
	rapid.Check(t, func(rt *rapid.T) {
		start, key, elapsed := Start(), Key(), time.Duration(0)
		var current *limit.Limit
		var largest, fastest, bucket, lowered, givenBack, admitted int64
		ask := func(lim *limit.Limit, n int64) backend.Result {
			return take(rt, l, start, elapsed, backend.Hit{Key: key, Limit: lim, N: n})[0]
		}
		reload := func(rt *rapid.T) {
			s := limit.Spec{
				Unit:         limit.Hour,
				Algorithm:    rapid.SampledFrom(limit.Algorithms()).Draw(rt, "algorithm"),
				Requests:     rapid.Uint32Range(0, most).Draw(rt, "requests"),
				ChargeDenied: rapid.Bool().Draw(rt, "charge denied"),
			}
			if bursts && s.Algorithm == limit.TokenBucket {
				s.Burst = rapid.Uint32Range(0, 40).Draw(rt, "burst")
			}
			next := NewLimit(rt, s)
			if current != nil {
				next = next.After(current, start.Add(elapsed).UnixMicro())
			}
			current = next
			if bursts && s.Algorithm == limit.TokenBucket {
				lowered += max(bucket-current.Capacity(), 0)
				bucket = current.Capacity()
			}
			largest, fastest = max(largest, current.Capacity()), max(fastest, current.Max())
		}
		reload(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"reload": reload,
			"wait": func(rt *rapid.T) {
				elapsed = min(elapsed+time.Duration(rapid.IntRange(0, 120).Draw(rt, "seconds"))*time.Second, 59*time.Minute)
			},
			"take": func(rt *rapid.T) {
				n := rapid.Int64Range(1, 8).Draw(rt, "n")
				if ask(current, n).Allowed {
					admitted += n
				}
				refilled := (fastest*elapsed.Microseconds() + time.Hour.Microseconds() - 1) / time.Hour.Microseconds()
				require.LessOrEqual(rt, admitted, largest+refilled+lowered+givenBack)
			},
			"give back": func(rt *rapid.T) {
				n := rapid.Int64Range(1, 8).Draw(rt, "n")
				ask(current, -n)
				if current.Algorithm == limit.TokenBucket { // a share, which is more hits under a higher rate
					n = n * most / max(current.Max(), 1)
				}
				givenBack += n
			},
			"reset": func(rt *rapid.T) {
				ask(current, -limit.MaxHits)
				require.Equal(rt, current.Capacity(), ask(current, 0).Remaining)
				largest, fastest, lowered, givenBack, admitted = current.Capacity(), current.Max(), 0, 0, 0
			},
		})
	})
}

// testWindows has one key charged under limits of any window that change at random,
// for less than an hour. Each starts with what the one before says is spent, and
// admits no more than it would alone.
func testWindows(t *testing.T, l backend.Limiter) {
	rapid.Check(t, func(rt *rapid.T) {
		start, key, elapsed := Start(), Key(), time.Duration(0)
		var current *limit.Limit
		largest, admitted := map[string]int64{}, map[string]int64{}
		ask := func(n int64) backend.Result {
			return take(rt, l, start, elapsed, backend.Hit{Key: key, Limit: current, N: n})[0]
		}
		reload := func(rt *rapid.T) {
			next := NewLimit(rt, limit.Spec{
				Unit:         rapid.SampledFrom([]limit.Unit{limit.Hour, limit.Day}).Draw(rt, "unit"),
				Multiplier:   rapid.Uint32Range(1, 2).Draw(rt, "multiplier"),
				Algorithm:    rapid.SampledFrom(limit.Algorithms()).Draw(rt, "algorithm"),
				Requests:     rapid.Uint32Range(0, 20).Draw(rt, "requests"),
				ChargeDenied: rapid.Bool().Draw(rt, "charge denied"),
			})
			largest[next.Tag()] = max(largest[next.Tag()], next.Max())
			if current == nil {
				current = next
				return
			}
			before := min(current.Spent(ask(0).Result), current.Capacity()) // a debt can be forgotten
			elsewhere := next.Tag() != current.Tag()
			current = next.After(current, start.Add(elapsed).UnixMicro())
			if elsewhere {
				require.GreaterOrEqual(rt, current.Spent(ask(0).Result), min(before, current.Capacity()))
			}
		}
		reload(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"reload": reload,
			"wait": func(rt *rapid.T) {
				elapsed = min(elapsed+time.Duration(rapid.IntRange(0, 600).Draw(rt, "seconds"))*time.Second, 59*time.Minute)
			},
			"take": func(rt *rapid.T) {
				n, tag := rapid.Int64Range(1, 8).Draw(rt, "n"), current.Tag()
				if ask(n).Allowed {
					admitted[tag] += n
				}
				bound := largest[tag]
				if current.Algorithm == limit.TokenBucket {
					bound += (largest[tag]*elapsed.Microseconds() + current.Period() - 1) / current.Period()
				}
				require.LessOrEqual(rt, admitted[tag], bound)
			},
		})
	})
}

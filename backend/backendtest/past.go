package backendtest

import (
	"context"
	"fmt"
	"sync"
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
	t.Run("64 callers carry over once", func(t *testing.T) { testCarriedOverOnce(t, open(t)) })
	t.Run("no sequence of reloads admits more than the largest limit", func(t *testing.T) { testReloads(t, open(t)) })
}

func testCarriedOver(t *testing.T, l backend.Limiter) {
	for _, was := range perHour(t, 10, false) {
		for _, is := range perHour(t, 20, false) {
			if was.Algorithm == is.Algorithm {
				continue
			}
			t.Run(fmt.Sprintf("%s to %s", was.Algorithm, is.Algorithm), func(t *testing.T) {
				start, key := Start(), Key()
				now := is.After(was, start.UnixMicro())
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
	}
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

func testCarriedOverOnce(t *testing.T, l backend.Limiter) {
	start := Start()
	for _, was := range perHour(t, 100, false) {
		for _, is := range perHour(t, 100, false) {
			if was.Algorithm == is.Algorithm {
				continue
			}
			key, now := Key(), is.After(was, start.UnixMicro())
			take(t, l, start, 0, backend.Hit{Key: key, Limit: was, N: 30})
			var admitted atomic.Int64
			var calling sync.WaitGroup
			for range 64 {
				calling.Go(func() {
					for range 2 {
						results := make([]backend.Result, 1)
						l.Take(context.Background(), start, []backend.Hit{{Key: key, Limit: now, N: 1}}, results)
						if assert.NoError(t, results[0].Err) && results[0].Allowed {
							admitted.Add(1)
						}
					}
				})
			}
			calling.Wait()
			assert.EqualValues(t, 70, admitted.Load(), "%s to %s", was.Algorithm, is.Algorithm)
		}
	}
}

// testReloads has one key charged under limits per hour that change at random, for
// less than that hour. Only a token bucket refills in that time.
func testReloads(t *testing.T, l backend.Limiter) {
	rapid.Check(t, func(rt *rapid.T) {
		start, key := Start(), Key()
		var current *limit.Limit
		largest, admitted, elapsed := int64(0), int64(0), time.Duration(0)
		reload := func(rt *rapid.T) {
			a := rapid.SampledFrom(limit.Algorithms()).Draw(rt, "algorithm")
			next := NewLimit(rt, limit.Spec{
				Unit:      limit.Hour,
				Algorithm: a,
				Requests:  rapid.Uint32Range(0, 20).Draw(rt, "requests"),
				// A log of denied hits forgets the admitted ones that they outweigh.
				ChargeDenied: a != limit.SlidingLog && rapid.Bool().Draw(rt, "charge denied"),
			})
			if current != nil {
				next = next.After(current, start.Add(elapsed).UnixMicro())
			}
			current = next
			largest = max(largest, current.Max())
		}
		reload(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"reload": reload,
			"wait": func(rt *rapid.T) {
				elapsed = min(elapsed+time.Duration(rapid.IntRange(0, 120).Draw(rt, "seconds"))*time.Second, 59*time.Minute)
			},
			"take": func(rt *rapid.T) {
				n := rapid.Int64Range(1, 8).Draw(rt, "n")
				if take(rt, l, start, elapsed, backend.Hit{Key: key, Limit: current, N: n})[0].Allowed {
					admitted += n
				}
				refilled := (largest*elapsed.Microseconds() + time.Hour.Microseconds() - 1) / time.Hour.Microseconds()
				require.LessOrEqual(rt, admitted, largest+refilled)
			},
		})
	})
}

package backendtest

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
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

// traceLimits returns the limits of random traces. Some limits have the same tag, like the limits before and after a
// reload. Traces use whole minutes, so that no counter is in the last seconds of its life.
func traceLimits(t require.TestingT, l backend.Limiter) []*limit.Limit {
	limits := slices.Concat(perHour(t, l, 4, false), perHour(t, l, 6, true), perHour(t, l, 0, true))
	for _, a := range algorithmsOf(l) {
		limits = append(limits, NewLimit(t, limit.Spec{Algorithm: a, Requests: 7, Unit: limit.Hour, Multiplier: 2}))
	}
	return append(limits,
		NewLimit(t, limit.Spec{Algorithm: limit.TokenBucket, Requests: 3, Unit: limit.Hour, Multiplier: 2, Burst: 9, ChargeDenied: true, Scope: limit.Instance}))
}

func testTraces(t *testing.T, l backend.Limiter) {
	limits, start := traceLimits(t, l), Start()
	rapid.Check(t, func(t *rapid.T) {
		keys := [][]byte{Key(), Key()}
		hit := rapid.Custom(func(t *rapid.T) backend.Hit {
			return backend.Hit{
				Key:   rapid.SampledFrom(keys).Draw(t, "key"),
				Limit: rapid.SampledFrom(limits).Draw(t, "limit"),
				N: rapid.OneOf(rapid.Int64Range(-3, 8), rapid.Just[int64](1),
					rapid.SampledFrom([]int64{limit.MaxHits + 1, -limit.MaxHits - 1})).Draw(t, "n"),
				Shadow: rapid.Bool().Draw(t, "shadow"),
			}
		})
		states, elapsed := model{}, time.Duration(0)
		for range rapid.IntRange(1, 25).Draw(t, "takes") {
			elapsed += time.Duration(rapid.OneOf(rapid.Just(0), rapid.IntRange(0, 20), rapid.IntRange(0, 200)).Draw(t, "minutes")) * time.Minute
			takeBoth(t, l, states, start, elapsed, rapid.SliceOfN(hit, 1, 6).Draw(t, "hits")...)
		}
	})
}

func testManyHits(t *testing.T, l backend.Limiter) {
	limits, start, states := traceLimits(t, l), Start(), model{}
	keys := make([][]byte, 200)
	for i := range keys {
		keys[i] = Key()
	}
	hits := make([]backend.Hit, 1000)
	for round := range 3 {
		for i := range hits {
			hits[i] = backend.Hit{Key: keys[(i*7)%len(keys)], Limit: limits[i%len(limits)], N: int64(i%4 - round%2)}
		}
		takeBoth(t, l, states, start, time.Duration(round)*25*time.Minute, hits...)
	}
}

func testNoHits(t *testing.T, l backend.Limiter) {
	assert.NotPanics(t, func() {
		take(t, l, Start(), 0)
		l.Take(t.Context(), Start(), nil, nil)
	})
}

func testSameCounterTwice(t *testing.T, l backend.Limiter) {
	for _, lim := range perHour(t, l, 5, false) {
		t.Run(lim.Algorithm.String(), func(t *testing.T) {
			a, b := Key(), Key()
			r := takeBoth(t, l, model{}, Start(), 0,
				backend.Hit{Key: a, Limit: lim, N: 3},
				backend.Hit{Key: b, Limit: lim, N: 1},
				backend.Hit{Key: slices.Clone(a), Limit: lim, N: 3},
				backend.Hit{Key: a, Limit: lim, N: 2},
				backend.Hit{Key: a, Limit: lim, N: -1},
				backend.Hit{Key: a, Limit: lim, N: 0})
			var answers []bool
			var remaining []int64
			for _, r := range r {
				answers = append(answers, r.Allowed)
				remaining = append(remaining, r.Remaining)
			}
			assert.Equal(t, []bool{ok, ok, no, ok, ok, ok}, answers)
			assert.Equal(t, []int64{2, 4, 2, 0, 1, 1}, remaining)
		})
	}
}

// testKeys charges similar keys in one Take. Each key must show its own count.
func testKeys(t *testing.T, l backend.Limiter) {
	var keys [][]byte
	for _, end := range []string{
		"", "a", "A", "b", "aa", "a ", " a", "a\x00", "a\x00\x00", "\x00", "\x00a", "\n", "a\r\n",
		"a_b", "a:b", "a|b", "{a}", "{a}b", "a{b}", "{}", "}{", "{", "}", "%", "%s", "*", "?", "[a]", "\\", "'", `"`, "é", "e\u0301", "\xff\xfe", "\xc3",
		"fw3600", "afw3600", "fw3600a", "1", "01", "-1",
		strings.Repeat("x", 63), strings.Repeat("x", 64), strings.Repeat("x", 65), strings.Repeat("x", 511), strings.Repeat("x", 512), strings.Repeat("x", 513),
	} {
		keys = append(keys, []byte(end))
	}
	for i := range 256 {
		keys = append(keys, []byte{'.', byte(i)})
	}
	longKey := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MB
	keys = append(keys, longKey, append(slices.Clone(longKey), 'x'), append([]byte{'x'}, longKey...))
	otherLongKey := slices.Clone(longKey)
	otherLongKey[len(otherLongKey)/2]++
	keys = append(keys, otherLongKey)

	lim := NewLimit(t, limit.Spec{Algorithm: limit.SlidingLog, Requests: 10_000, Unit: limit.Hour})
	start, prefix := Start(), Key()
	hits := make([]backend.Hit, len(keys))
	for i, end := range keys {
		hits[i] = backend.Hit{Key: slices.Concat(prefix, end), Limit: lim, N: int64(i) + 1}
	}
	take(t, l, start, 0, hits...)
	for i := range hits {
		hits[i].N = 0
	}
	for i, r := range take(t, l, start, 0, hits...) {
		assert.Equal(t, int64(10_000-i-1), r.Remaining, "key ends in %.20q, %d bytes", keys[i], len(keys[i]))
	}
}

// testEmptyKey needs an unused counter, but all tests share the empty key. A window of random
// length makes the tag of the counter new.
func testEmptyKey(t *testing.T, l backend.Limiter) {
	lim := NewLimit(t, limit.Spec{Algorithm: limit.SlidingLog, Requests: 5, Unit: limit.Second, Multiplier: 3600 + rand.Uint32N(1<<24)})
	start := Start()
	for i, key := range [][]byte{nil, {}, {}} {
		assertTake(t, l, start, backend.Hit{Key: key, Limit: lim, N: 1}, ok, int64(4-i))
	}
	assertTake(t, l, start, backend.Hit{Key: Key(), Limit: lim, N: 1}, ok, 4)
}

func testKeyIsBorrowed(t *testing.T, l backend.Limiter) {
	for _, lim := range perHour(t, l, 5, false) {
		start, a, b := Start(), Key(), Key()
		buf := make([]byte, 64)
		borrow := func(key []byte) backend.Hit {
			clear(buf)
			return backend.Hit{Key: append(buf[:0], key...), Limit: lim, N: 1}
		}
		assertTake(t, l, start, borrow(a), ok, 4)
		assertTake(t, l, start, borrow(b), ok, 4)
		assertTake(t, l, start, borrow(a), ok, 3)
	}
}

func testTagsApart(t *testing.T, l backend.Limiter) {
	var hits []backend.Hit
	key := Key()
	for _, a := range algorithmsOf(l) {
		for _, u := range []limit.Unit{limit.Hour, limit.Day} {
			if a.HasHolds() && u != limit.Hour {
				continue // the tag has no window
			}
			for _, s := range []limit.Scope{limit.Region, limit.Instance} {
				lim := NewLimit(t, limit.Spec{Algorithm: a, Requests: 100, Unit: u, Scope: s})
				hits = append(hits, backend.Hit{Key: key, Limit: lim, N: int64(len(hits)) + 1})
			}
		}
	}
	start := Start()
	take(t, l, start, 0, hits...)
	for i := range hits {
		hits[i].N = 0
	}
	for i, r := range take(t, l, start, 0, hits...) {
		assert.Equal(t, int64(100-i-1), r.Remaining, hits[i].Limit.Tag())
	}
}

func testTagsTogether(t *testing.T, l backend.Limiter) {
	for _, a := range algorithmsOf(l) {
		t.Run(a.String(), func(t *testing.T) {
			oldLimit := NewLimit(t, limit.Spec{Algorithm: a, Requests: 5, Unit: limit.Hour})
			newLimit := NewLimit(t, limit.Spec{Algorithm: a, Requests: 10, Unit: limit.Minute, Multiplier: 60, ChargeDenied: true})
			require.Equal(t, oldLimit.Tag(), newLimit.Tag())
			key, start, states := Key(), Start(), model{}
			for _, lim := range []*limit.Limit{oldLimit, oldLimit, newLimit, newLimit, oldLimit} {
				takeBoth(t, l, states, start, 0, backend.Hit{Key: key, Limit: lim, N: 2})
			}
		})
	}
}

func testCancelled(t *testing.T, l backend.Limiter) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	hits := []backend.Hit{{Key: Key(), Limit: perHour(t, l, 5, false)[0], N: 1}}
	results := []backend.Result{{Err: errStale}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Take(ctx, Start(), hits, results)
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("Take is blocked")
	}
	if err := results[0].Err; err != nil {
		require.NotErrorIs(t, err, errStale)
		return
	}
	assert.True(t, results[0].Allowed)
	assert.Equal(t, int64(4), results[0].Remaining)
}

const callers = 64

// crowd runs f for each of the callers at once.
func crowd(f func(caller int)) {
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

func testContention(t *testing.T, l backend.Limiter) {
	for _, lim := range perHour(t, l, 100, false) {
		t.Run(lim.Algorithm.String(), func(t *testing.T) {
			var admittedHits atomic.Int64
			key, start := Key(), Start()
			crowd(func(int) {
				for range 8 {
					if r, err := quietTake(l, start, backend.Hit{Key: key, Limit: lim, N: 1}); assert.NoError(t, err) && r[0].Allowed {
						admittedHits.Add(1)
					}
				}
			})
			assert.Equal(t, int64(100), admittedHits.Load())
			assert.Equal(t, int64(0), take(t, l, start, 0, backend.Hit{Key: key, Limit: lim})[0].Remaining)
		})
	}
}

func testContentionOfMany(t *testing.T, l backend.Limiter) {
	for _, lim := range slices.Concat(perHour(t, l, 200, false), perHour(t, l, 200, true)) {
		name := lim.Algorithm.String()
		if lim.ChargeDenied {
			name += ", denied hits charged"
		}
		t.Run(name, func(t *testing.T) {
			var admittedHits [2]atomic.Int64
			keys, start := [2][]byte{Key(), Key()}, Start()
			crowd(func(caller int) {
				for i := range 5 {
					first := (caller + i) % 2
					hits := []backend.Hit{
						{Key: keys[first], Limit: lim, N: int64(caller%3) + 1},
						{Key: keys[1-first], Limit: lim, N: int64(i%4) + 1},
						{Key: keys[first], Limit: lim, N: 1},
					}
					r, err := quietTake(l, start, hits...)
					if !assert.NoError(t, err) {
						return
					}
					for j, which := range []int{first, 1 - first, first} {
						if r[j].Allowed {
							admittedHits[which].Add(hits[j].N)
						}
					}
				}
			})
			for i := range admittedHits {
				assert.LessOrEqual(t, admittedHits[i].Load(), int64(200))
				assert.Greater(t, admittedHits[i].Load(), int64(200-4), "a call that exceeds the rest is denied, so at most 4 hits remain")
			}
		})
	}
}

// quietTake is take for goroutines that a test starts, because such goroutines must not call FailNow.
func quietTake(l backend.Limiter, now time.Time, hits ...backend.Hit) ([]backend.Result, error) {
	results := make([]backend.Result, len(hits))
	l.Take(context.Background(), now, hits, results)
	for i := range results {
		if results[i].Err != nil {
			return nil, results[i].Err
		}
	}
	return results, nil
}

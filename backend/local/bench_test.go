package local

import (
	"context"
	"encoding/binary"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newLimit(t require.TestingT, s limit.Spec) *limit.Limit {
	l, err := limit.New(s)
	require.NoError(t, err)
	return l
}

func newHourLimit(t require.TestingT, a limit.Algorithm, requests uint32) *limit.Limit {
	s := limit.Spec{Algorithm: a, Requests: requests, Unit: limit.Hour, ChargeDenied: a.DefaultChargeDenied()}
	if a.HasHolds() {
		s.Hold = time.Hour.Microseconds()
	}
	return newLimit(t, s)
}

// charge takes n hits of one key and returns the result.
func charge(l *Limiter, now time.Time, key []byte, lim *limit.Limit, n int64) limit.Result {
	hits := [1]backend.Hit{{Key: key, Limit: lim, N: n}}
	var results [1]backend.Result
	l.Take(context.Background(), now, hits[:], results[:])
	return results[0].Result
}

// appendNumber returns key number i in the memory of buf. The key has the form and length of a real key.
func appendNumber(buf []byte, i int) []byte {
	buf = append(buf[:0], "shop|service=checkout|path=/v1/orders|ip="...)
	return binary.BigEndian.AppendUint64(buf, uint64(i))
}

// bytesPerKey charges a number of keys, each with padding more bytes. It returns the memory
// that the Limiter uses for each key.
func bytesPerKey(t testing.TB, a limit.Algorithm, keys, padding int) float64 {
	var statsBefore, statsAfter runtime.MemStats
	lim, paddingBytes := newHourLimit(t, a, 100), make([]byte, padding)
	runtime.GC()
	runtime.ReadMemStats(&statsBefore)
	l := New(Options{})
	var buf []byte
	for i := range keys {
		buf = append(appendNumber(buf, i), paddingBytes...)
		charge(l, noon, buf, lim, 1)
	}
	runtime.GC()
	runtime.ReadMemStats(&statsAfter)
	return (float64(statsAfter.HeapAlloc) - float64(statsBefore.HeapAlloc)) / float64(l.Keys())
}

func TestMemoryPerKeyDoesNotDependOnTheKeysLength(t *testing.T) {
	assert.Less(t, bytesPerKey(t, limit.FixedWindow, 200_000, 0), 120.0)
	assert.Less(t, bytesPerKey(t, limit.FixedWindow, 50_000, 1000), 120.0)
}

func BenchmarkBytesPerKey(b *testing.B) {
	for _, a := range limit.Algorithms() {
		b.Run(a.String(), func(b *testing.B) {
			for b.Loop() {
				b.ReportMetric(bytesPerKey(b, a, 1_000_000, 0), "bytes/key")
			}
		})
	}
}

// BenchmarkTake charges 10,000 known keys with fixed_window.
func BenchmarkTake(b *testing.B) {
	const keys = 10_000
	for name, allOrNone := range map[string]bool{"": false, "all-or-none/": true} {
		for _, n := range []int{1, 4} {
			b.Run(name+strconv.Itoa(n), func(b *testing.B) {
				l, lim := New(Options{}), newHourLimit(b, limit.FixedWindow, 1<<30)
				var nextKey atomic.Int64
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					i := int(nextKey.Add(keys / 3))
					hits, results := make([]backend.Hit, n), make([]backend.Result, n)
					for j := range hits {
						hits[j] = backend.Hit{Limit: lim, N: 1, AllOrNone: allOrNone}
					}
					for pb.Next() {
						for j := range hits {
							i++
							hits[j].Key = appendNumber(hits[j].Key, i%keys)
						}
						l.Take(context.Background(), noon, hits, results)
					}
				})
			})
		}
	}
}

// BenchmarkAlgorithms charges one key, which is denied after 1,000 hits.
func BenchmarkAlgorithms(b *testing.B) {
	for _, a := range limit.Algorithms() {
		b.Run(a.String(), func(b *testing.B) {
			l, lim := New(Options{}), newHourLimit(b, a, 1000)
			key := []byte("key")
			b.ReportAllocs()
			for b.Loop() {
				charge(l, noon, key, lim, 1)
			}
		})
	}
}

// BenchmarkFlood charges only new keys after the bound is reached.
func BenchmarkFlood(b *testing.B) {
	l, lim := New(Options{}), newHourLimit(b, limit.FixedWindow, 10)
	var buf []byte
	i := 0
	for ; i < DefaultMaxKeys*11/10; i++ {
		buf = appendNumber(buf, i)
		charge(l, noon, buf, lim, 1)
	}
	b.ReportAllocs()
	for b.Loop() {
		i++
		buf = appendNumber(buf, i)
		charge(l, noon, buf, lim, 1)
	}
}

// BenchmarkManyKeys charges keys that are mostly not in the CPU cache.
func BenchmarkManyKeys(b *testing.B) {
	l, lim := New(Options{}), newHourLimit(b, limit.FixedWindow, 1<<30)
	var buf []byte
	for i := range DefaultMaxKeys {
		buf = appendNumber(buf, i)
		charge(l, noon, buf, lim, 1)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i = (i + 514_229) % DefaultMaxKeys
		buf = appendNumber(buf, i)
		charge(l, noon, buf, lim, 1)
	}
}

// BenchmarkGrowth adds a million keys. It reports the longest Take, and the memory of a key.
func BenchmarkGrowth(b *testing.B) {
	lim := newHourLimit(b, limit.FixedWindow, 100)
	for b.Loop() {
		l := New(Options{MaxKeys: 2_000_000})
		var buf []byte
		var longestTake time.Duration
		for i := range 1_000_000 {
			buf = appendNumber(buf, i)
			start := time.Now()
			charge(l, noon, buf, lim, 1)
			longestTake = max(longestTake, time.Since(start))
		}
		b.ReportMetric(float64(longestTake.Microseconds()), "longest-µs")
		b.ReportMetric(float64(l.Bytes())/1e6, "B/key")
	}
}

package live

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/descriptors"
)

// zipf draws numbers below n. The probability of number k is proportional to 1/(k+1)^s.
type zipf struct {
	cumulative []float64
	random     *rand.Rand
}

func newZipf(n int, s float64, seed uint64) *zipf {
	z := &zipf{cumulative: make([]float64, n), random: rand.New(rand.NewPCG(seed, 1))}
	sum := 0.0
	for k := range n {
		sum += math.Pow(float64(k+1), -s)
		z.cumulative[k] = sum
	}
	return z
}

func (z *zipf) draw() int {
	x := z.random.Float64() * z.cumulative[len(z.cumulative)-1]
	place, _ := slices.BinarySearch(z.cumulative, x)
	return place
}

// recall returns how many of the n most frequent numbers are among the n top keys of s, as a share from 0 to 1.
func recall(s *sketch, n int) float64 {
	foundCount := 0
	for _, e := range s.topEntries(n, nil) {
		if int(e.hash) < n {
			foundCount++
		}
	}
	return float64(foundCount) / float64(n)
}

func TestBusiestKeysOfZipfTrafficAreFound(t *testing.T) {
	t.Parallel()
	const keys = 1_000_000
	for seed := range uint64(1) {
		sketch, z := newSketch(maxSketchKeys), newZipf(keys, 1.1, seed)
		for range 60 { // seconds
			for range maxEventsPerSecond {
				number := z.draw()
				sketch.add(&event{hash: uint64(number), hits: 1}, binary.AppendUvarint(nil, uint64(number)), 1)
			}
			sketch.advance(1)
		}
		assert.GreaterOrEqual(t, recall(sketch, 20), 0.95, "seed %d", seed)
	}
}

func TestRatesFollowTraffic(t *testing.T) {
	t.Parallel()
	sketch := newSketch(10)
	addSecond := func(hits, denied float64) {
		sketch.add(&event{hash: 1, hits: hits, deniedHits: denied}, []byte("a"), hits)
		sketch.add(&event{hash: 2, hits: 100}, []byte("b"), 100)
		sketch.advance(1)
	}
	for range 20 {
		addSecond(300, 200)
	}
	top := sketch.topEntries(5, nil)
	require.Len(t, top, 2)
	assert.Equal(t, "a", string(top[0].key))
	assertRates := func(wantAll, wantDenied float64) {
		assert.InDelta(t, wantAll, top[0].rate, 1e-3)
		assert.InDelta(t, wantDenied, top[0].deniedRate, 1e-3)
	}
	assertRates(300, 200)
	assert.InDelta(t, 0.75, top[0].share, 0.001)
	for range 5 {
		addSecond(10, 0)
	}
	top = sketch.topEntries(5, nil)
	assertRates(10, 0)
	assert.Equal(t, "a", string(top[0].key), "keys are sorted by the hits of the last minutes")
	for range 120 {
		addSecond(10, 0)
	}
	assert.Equal(t, "b", string(sketch.topEntries(1, nil)[0].key))
}

func TestFloodIsFirstAfterTwoSeconds(t *testing.T) {
	t.Parallel()
	s := newSketch(10)
	s.add(&event{hash: 1, hits: 1}, []byte("quiet"), 1)
	assert.Len(t, s.topEntries(5, nil), 1, "before the first second, all rates are unknown")
	for second := range 302 {
		s.add(&event{hash: 2, hits: 59}, []byte("busy"), 59)
		if second >= 300 {
			s.add(&event{hash: 3, hits: 320}, []byte("flood"), 320)
		}
		s.advance(1)
	}
	assert.Equal(t, "flood", string(s.topEntries(5, nil)[0].key))
	for range 10 { // the flood has ended
		s.add(&event{hash: 2, hits: 59}, []byte("busy"), 59)
		s.advance(1)
	}
	assert.Equal(t, "busy", string(s.topEntries(5, nil)[0].key))
}

func TestKeyWithoutHitsIsForgotten(t *testing.T) {
	t.Parallel()
	sketch := newSketch(10)
	sketch.add(&event{hash: 1, hits: 1}, []byte("a"), 1)
	for range 10 {
		sketch.add(&event{hash: 2, hits: 1}, []byte("b"), 1)
		sketch.advance(60)
	}
	require.Len(t, sketch.entries, 1)
	assert.Equal(t, "b", string(sketch.topEntries(5, nil)[0].key))
	sketch.add(&event{hash: 1, hits: 5}, []byte("a"), 5)
	assert.Len(t, sketch.topEntries(5, nil), 2)
	checkSketch(t, sketch)
}

// checkSketch checks the heap and the index of s.
func checkSketch(t *testing.T, s *sketch) {
	t.Helper()
	for place, e := range s.heap {
		require.Equal(t, place, e.heapIndex)
		require.Same(t, e, s.entries[e.hash])
		require.LessOrEqual(t, s.heap[max(place-1, 0)/2].count, e.count)
	}
	require.Len(t, s.entries, len(s.heap))
}

func TestSketchKeepsItsOrderUnderRandomTraffic(t *testing.T) {
	t.Parallel()
	sketch, random := newSketch(50), rand.New(rand.NewPCG(1, 2))
	total := 0.0
	for i := range 20_000 {
		n := float64(random.IntN(5))
		total += n
		sketch.add(&event{hash: uint64(random.IntN(200)), hits: n}, nil, n*float64(random.IntN(2)))
		if i%1000 == 0 {
			sketch.advance(float64(random.IntN(100)))
			checkSketch(t, sketch)
		}
	}
	checkSketch(t, sketch)
}

func TestFloodOfKeysLeavesSketchBounded(t *testing.T) {
	sketch := newSketch(maxSketchKeys)
	key := make([]byte, 2*maxKeyBytes)
	rule, limit := &descriptors.Rule{}, &descriptors.RateLimit{}
	frequentHits := 0
	bytesBefore := heapBytes()
	for i := range 1_000_000 {
		binary.LittleEndian.PutUint64(key, uint64(i))
		sketch.add(&event{hash: uint64(i) + 1<<32, rule: rule, limit: limit, hits: 1}, key[:maxKeyBytes], 1)
		if i%50 == 0 {
			frequentHits++
			sketch.add(&event{hash: uint64(frequentHits % 20), rule: rule, limit: limit, hits: 1}, key[:10], 1)
		}
		if i%20_000 == 0 {
			sketch.advance(1)
		}
	}
	usedBytes := heapBytes() - bytesBefore
	assert.Len(t, sketch.entries, maxSketchKeys)
	assert.Less(t, usedBytes, 3<<20, "bytes of one sketch")
	t.Logf("a sketch uses %.2f MiB after 1M random keys of %d bytes", float64(usedBytes)/(1<<20), maxKeyBytes)
	assert.Equal(t, 1.0, recall(sketch, 20), "the flood does not hide 20 keys that have a thousandth of the hits each")
	runtime.KeepAlive(sketch)
}

func heapBytes() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func BenchmarkSketch(b *testing.B) {
	for _, test := range []struct {
		name string
		keys int
	}{{"zipf", 0}, {"random keys", 1 << 40}} {
		b.Run(test.name, func(b *testing.B) {
			sketch, z := newSketch(maxSketchKeys), newZipf(100_000, 1.1, 1)
			numbers := make([]uint64, 1<<16)
			for i := range numbers {
				numbers[i] = uint64(z.draw())
			}
			key := []byte(fmt.Sprintf("shop|remote_address=%s", "10.20.30.40"))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				hash := numbers[i%len(numbers)]
				if test.keys > 0 {
					hash = uint64(i)
				}
				sketch.add(&event{hash: hash, hits: 1}, key, 1)
			}
		})
	}
}

// TestDeniedKeyKeepsItsHitsUnderFlood has more keys with many hits than a sketch of the hottest keys could keep.
func TestDeniedKeyKeepsItsHitsUnderFlood(t *testing.T) {
	t.Parallel()
	sketch := newSketch(10) // a sketch of the most denied keys
	for range 20 {
		sketch.add(&event{hash: 1, hits: 4}, []byte("denied"), 0)
		sketch.add(&event{hash: 1, hits: 8, deniedHits: 8}, []byte("denied"), 8)
		for i := range uint64(50) {
			sketch.add(&event{hash: 100 + i, hits: 1000}, []byte("hot"), 0)
		}
		sketch.advance(1)
		checkSketch(t, sketch)
	}
	top := sketch.topEntries(5, nil)
	require.Len(t, top, 1)
	assert.InDelta(t, 12, top[0].rate, 1e-9)
	assert.InDelta(t, 8, top[0].deniedRate, 1e-9)
	assert.Equal(t, "denied", string(top[0].key))
}

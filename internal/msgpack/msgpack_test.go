package msgpack

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestIntegersAreReadBack(t *testing.T) {
	numbers := []int64{0, 1, 127, 128, math.MaxUint32, math.MaxUint32 + 1, math.MaxInt64, -1, -32, -33, math.MinInt64}
	for range 1000 {
		numbers = append(numbers, rand.Int64()>>rand.IntN(64), -rand.Int64()>>rand.IntN(64))
	}
	b := AppendArray(nil, len(numbers))
	for _, n := range numbers {
		b = AppendInt(b, n)
	}
	r := Reader{Rest: string(b)}
	require.Equal(t, len(numbers), r.Array())
	for _, n := range numbers {
		assert.Equal(t, n, r.Int())
	}
	assert.False(t, r.Failed)
	assert.Empty(t, r.Rest)
}

func FuzzReader(f *testing.F) {
	f.Add("\x94\x01\xcd\x00\x01\xd3")
	f.Fuzz(func(t *testing.T, s string) {
		r := Reader{Rest: s}
		for n := r.Array(); n > 0 && !r.Failed; n-- {
			r.Int()
			_ = r.String()
		}
	})
}

func TestStringsAreReadBack(t *testing.T) {
	r := Reader{Rest: string(AppendString(AppendString(nil, ""), "sliding_window")) + "\xd9\x02ab"}
	assert.Equal(t, []string{"", "sliding_window", "ab"}, []string{r.String(), r.String(), r.String()})
	assert.False(t, r.Failed)
	assert.Zero(t, r.String())
	assert.True(t, r.Failed)
	assert.Zero(t, r.Int())
}

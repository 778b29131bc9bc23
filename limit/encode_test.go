package limit

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestDecodedStateDecidesAsTheOriginal(t *testing.T) {
	for _, a := range Algorithms() {
		if a.HasHolds() {
			continue
		}
		t.Run(a.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				l, err := New(Spec{Algorithm: a, Requests: rapid.Uint32Range(0, 50).Draw(t, "requests"), Unit: Minute, ChargeDenied: rapid.Bool().Draw(t, "charge denied")})
				require.NoError(t, err)
				var originalState, decodedState State
				now := int64(1_800_000_000 * second)
				for range rapid.IntRange(1, 30).Draw(t, "takes") {
					now += rapid.Int64Range(-second, 40*second).Draw(t, "pause")
					n := rapid.Int64Range(-3, 20).Draw(t, "n")
					require.Equal(t, l.Take(&originalState, now, n), l.Take(&decodedState, now, n))
					decodedState, err = DecodeState(decodedState.Append(nil))
					require.NoError(t, err)
				}
			})
		})
	}
}

func TestLargestLogFitsInAnItemOfMemcached(t *testing.T) {
	l, err := New(Spec{Algorithm: SlidingLog, Requests: 1 << 31, Unit: Year, Multiplier: 10})
	require.NoError(t, err)
	var s State
	for i := range int64(3 * MaxLogEntries) {
		l.Take(&s, 1_800_000_000*second+i*l.Period()/(3*MaxLogEntries), 1<<18)
	}
	assert.Greater(t, s.EntryCount(), exactLogEntries)
	assert.Less(t, len(s.Append(nil)), 64<<10, "memcached stores up to a megabyte")
}

func TestDecodeStateRejectsForeignValues(t *testing.T) {
	for name, value := range map[string][]byte{
		"no bytes":             {},
		"two numbers":          {1, 2},
		"text":                 []byte("hello"),
		"number above MaxHits": {1, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1, 0},
		"negative time":        {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1, 0, 0},
		"entry without hits":   {1, 0, 0, 5, 0},
		"half an entry":        {1, 0, 0, 5},
		"a sum that differs from the hits of the log": {2, 0, 0, 5, 1},
		"number without an end":                       {0x80, 0x80},
	} {
		_, err := DecodeState(value)
		assert.ErrorIs(t, err, errInvalidState, name)
	}
}

// encode returns numbers as Append encodes them.
func encode(numbers ...uint64) (b []byte) {
	for _, n := range numbers {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

func TestDecodeStateChecksTheRangeOfEachNumber(t *testing.T) {
	const maxTime = math.MaxInt64
	for _, c := range []struct {
		name    string
		value   []byte
		isState bool
	}{
		{"the most hits of a window", encode(epoch, MaxHits, 0), true},
		{"one hit more than a window can have", encode(epoch, MaxHits+1, 0), false},
		{"the most hits of two windows", encode(epoch, MaxHits, MaxHits), true},
		{"one hit more in the previous window", encode(epoch, MaxHits, MaxHits+1), false},
		{"the latest time", encode(maxTime, 1, 0), true},
		{"a time after the latest time", encode(maxTime+1, 1, 0), false},
		{"the most hits of a log entry", encode(MaxHits, 0, 0, epoch, MaxHits), true},
		{"one hit more in a log entry", encode(MaxHits+1, 0, 0, epoch, MaxHits+1), false},
		{"an entry at the epoch", encode(1, 0, 0, 0, 1), true},
		{"an entry without hits", encode(5, 0, 0, epoch, 5, 1, 0), false},
		{"a log until the latest time", encode(2, 0, 0, maxTime-1, 1, 1, 1), true},
		{"a log until a time after the latest time", encode(2, 0, 0, maxTime, 1, 1, 1), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := DecodeState(c.value)
			assert.Equal(t, c.isState, err == nil)
			if err == nil {
				assert.Equal(t, c.value, s.Append(nil))
			}
		})
	}
}

func FuzzDecodeState(f *testing.F) {
	l, err := New(Spec{Algorithm: TokenBucket, Requests: 7, Unit: Second})
	require.NoError(f, err)
	f.Add([]byte{1, 0, 0, 5, 1})
	f.Fuzz(func(t *testing.T, value []byte) {
		s, err := DecodeState(value)
		if err != nil {
			return
		}
		sameState, err := DecodeState(s.Append(nil))
		require.NoError(t, err)
		require.Equal(t, s, sameState)
		l.Take(&s, 1_800_000_000*second, 1)
	})
}

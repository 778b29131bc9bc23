package limit

import (
	"fmt"
	"math"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestEachFieldAllowsItsWholeRange(t *testing.T) {
	tenYears := uint32(10 * 365 * 86_400)
	for _, c := range []struct {
		name      string
		spec      Spec
		isAllowed bool
	}{
		{"the longest window in seconds", Spec{Requests: 1, Unit: Second, Multiplier: tenYears}, true},
		{"a second longer than the longest window", Spec{Requests: 1, Unit: Second, Multiplier: tenYears + 1}, false},
		{"the longest window in years", Spec{Requests: 1, Unit: Year, Multiplier: 10}, true},
		{"the shortest window", Spec{Requests: 1, Unit: Millisecond, Multiplier: 10}, true},
		{"a millisecond shorter than the shortest window", Spec{Requests: 1, Unit: Millisecond, Multiplier: 9}, false},
		{"a ratio of 1", Spec{Requests: 1, Unit: Second, FallbackRatio: 1}, true},
		{"the shortest hold", Spec{Algorithm: Concurrency, Requests: 1, Hold: MinHold}, true},
		{"a microsecond shorter than the shortest hold", Spec{Algorithm: Concurrency, Requests: 1, Hold: MinHold - 1}, false},
		{"the longest hold", Spec{Algorithm: Concurrency, Requests: 1, Hold: MaxHold}, true},
		{"a microsecond longer than the longest hold", Spec{Algorithm: Concurrency, Requests: 1, Hold: MaxHold + 1}, false},
		{"the highest waste", Spec{Requests: 1000, Unit: Second, Lease: true, LeaseWaste: MaxLeaseWaste}, true},
		{"a waste above the highest waste", Spec{Requests: 1000, Unit: Second, Lease: true, LeaseWaste: MaxLeaseWaste + 0.01}, false},
		{"a negative waste", Spec{Requests: 1000, Unit: Second, Lease: true, LeaseWaste: -0.01}, false},
		{"a waste of NaN", Spec{Requests: 1000, Unit: Second, Lease: true, LeaseWaste: math.NaN()}, false},
		{"the last algorithm", Spec{Algorithm: Algorithm(len(Algorithms()) - 1), Requests: 1, Unit: Second}, true},
		{"a number after the last algorithm", Spec{Algorithm: Algorithm(len(Algorithms())), Requests: 1, Unit: Second}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := New(c.spec)
			assert.Equal(t, c.isAllowed, err == nil, "%v", err)
		})
	}
}

func TestErrorNamesTheShortestWindowInItsUnit(t *testing.T) {
	_, err := New(Spec{Requests: 1, Unit: Millisecond, Multiplier: 9})
	assert.EqualError(t, err, "unit_multiplier 9 makes the window 9 ms long; with unit millisecond it must be at least 10")
}

// The quotients of these limits need 65 bits.
func TestLimitsAtTheEdgeOf64BitsAreExact(t *testing.T) {
	shiftedQuotient := func(n, divisor uint64) uint64 { // n × 2^64 / divisor, rounded up
		q, remainder := bits.Div64(n, 0, divisor)
		if remainder > 0 {
			q++
		}
		return q
	}
	t.Run("a burst", func(t *testing.T) {
		const millis = 73
		l, err := New(Spec{Algorithm: TokenBucket, Requests: uint32(shiftedQuotient(millis*1000, MaxPeriod)), Unit: Millisecond, Multiplier: millis, Burst: math.MaxUint32})
		require.NoError(t, err)
		assert.Equal(t, int64(math.MaxUint32), l.Capacity())
	})
	t.Run("a refill", func(t *testing.T) {
		l := mustNew(t, Spec{Algorithm: TokenBucket, Requests: math.MaxUint32, Unit: Second})
		assert.Equal(t, int64(MaxHits), l.RefilledTokens(int64(shiftedQuotient(second, math.MaxUint32))))
	})
	t.Run("a change of the rate", func(t *testing.T) {
		oldLimit := mustNew(t, Spec{Algorithm: TokenBucket, Requests: math.MaxUint32, Unit: Year, Multiplier: 10, Burst: math.MaxUint32})
		rate, _ := bits.Mul64(MaxPeriod, math.MaxUint32)
		newLimit := mustNew(t, Spec{Algorithm: TokenBucket, Requests: uint32(rate), Unit: Year, Multiplier: 10, Burst: uint32(rate)})
		var s State
		require.True(t, oldLimit.Take(&s, epoch, oldLimit.Capacity()).Allowed)
		assert.Zero(t, newLimit.Take(&s, epoch, 0).Remaining)
	})
	t.Run("spent tokens", func(t *testing.T) {
		l := mustNew(t, Spec{Algorithm: TokenBucket, Requests: math.MaxUint32, Unit: Second, Multiplier: 1 << 27, Burst: 1<<31 + 5})
		r := l.Take(new(State), epoch, 1<<31) // tokens × period is a multiple of 2^64
		assert.True(t, r.Allowed)
		assert.Equal(t, int64(5), r.Remaining)
	})
}

func TestBucketCountsPartsOfAMicrosecond(t *testing.T) {
	fastBucket := mustNew(t, Spec{Algorithm: TokenBucket, Requests: 3_000_000_000, Unit: Second})
	var s State
	require.True(t, fastBucket.Take(&s, epoch, 10).Allowed)
	assert.Equal(t, fastBucket.Capacity()-1, fastBucket.Take(&s, epoch, -9).Remaining, "one token refills in a third of a nanosecond")

	oldLimit, newLimit := mustNew(t, Spec{Algorithm: TokenBucket, Requests: 3, Unit: Second}), mustNew(t, Spec{Algorithm: TokenBucket, Requests: 4, Unit: Second})
	s = State{}
	require.True(t, oldLimit.Take(&s, epoch, 1).Allowed)
	// A third of the bucket is spent. After 83,333 µs, 1.0000013 of 4 tokens are spent.
	assert.Equal(t, int64(2), newLimit.Take(&s, epoch+83_333, 0).Remaining)
	assert.Equal(t, int64(3), newLimit.Take(&s, epoch+83_334, 0).Remaining)
}

func TestSlidingWindowRefillsOneHitAtEachTick(t *testing.T) {
	l := mustNew(t, Spec{Algorithm: SlidingWindow, Requests: maxTicks, Unit: Millisecond, Multiplier: 65_536}) // a tick is 125 µs
	var s State
	start := epoch - epoch%l.Period()
	require.True(t, l.Take(&s, start, maxTicks).Allowed)
	for _, ticks := range []int64{1, 2, 1000, maxTicks / 2, maxTicks - 1} {
		now := start + l.Period() + 125*ticks
		assert.Equal(t, ticks, l.Take(&s, now, 0).Remaining)
		assert.Equal(t, ticks-1, l.Take(&s, now-1, 0).Remaining)
	}
}

func TestLongLogCombinesTheHitsOfATick(t *testing.T) {
	l := mustNew(t, Spec{Algorithm: SlidingLog, Requests: 10_000, Unit: Hour})
	tick := ceilDiv(l.Period(), logTicks)
	var s State
	now := epoch - epoch%tick
	for n := range maxExactLogEntries {
		assert.Equal(t, n, s.EntryCount())
		require.True(t, l.Take(&s, now, 1).Allowed)
		now++
	}
	for range 10 {
		require.True(t, l.Take(&s, now, 1).Allowed)
		now++
		assert.Equal(t, maxExactLogEntries, s.EntryCount(), "hits of one tick share an entry")
	}
	require.True(t, l.Take(&s, now+tick, 1).Allowed)
	assert.Equal(t, maxExactLogEntries+1, s.EntryCount())
	assert.Equal(t, int64(10_000-maxExactLogEntries-11), l.Take(&s, now+tick, 0).Remaining)
}

func TestHoldsOfACounterAreBounded(t *testing.T) {
	l := mustNew(t, Spec{Algorithm: Concurrency, Requests: 10 * maxHoldEntries, Hold: 10 * second})
	for _, c := range []struct {
		name                     string
		slots, holds, namedHolds int64 // the counter admits this number of holds, and then denies one hold
	}{
		{"holds of one slot", 1, maxHoldEntries, 0},
		{"holds of several slots", 3, maxHoldEntries / 2, 0},
		{"holds with ids", 1, maxHoldEntries, 1000},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s State
			for i := range c.holds {
				id := ""
				if i < c.namedHolds {
					id = fmt.Sprint(i)
				}
				require.True(t, l.TakeHold(&s, epoch+i, c.slots, id).Allowed)
			}
			assert.Equal(t, int(2*(c.holds-c.namedHolds)+4*c.namedHolds), s.EntryCount())
			assert.False(t, l.TakeHold(&s, epoch+c.holds, c.slots, "").Allowed)
			l.TakeHold(&s, epoch+c.holds, -c.slots, "")
			assert.True(t, l.TakeHold(&s, epoch+c.holds, c.slots, "").Allowed)
			assert.Equal(t, epoch+c.holds+l.Hold, s.LastExpiry())
		})
	}
}

func TestUndoOfForgottenHitsChangesNothing(t *testing.T) {
	for _, a := range Algorithms() {
		for _, id := range []string{"", "a"} {
			l, emptyState := mustNew(t, Spec{Algorithm: a, Requests: 9, Unit: Second, Hold: holdTimeOf(a)}), State{}
			want := l.Take(&emptyState, epoch, 0)
			assert.Zero(t, emptyState.LastExpiry())
			assert.Equal(t, want, peekAfterUndo(l, &emptyState, l.Undo(&emptyState, epoch, 3, id, 0)), "nothing was taken: %v", a)

			var s State
			require.True(t, l.Take(&s, epoch, 2).Allowed)
			peek := l.Take(&s, epoch, 0)
			if a.HasHolds() {
				for _, offset := range []int64{-second / 2, -1, 1, second / 2} { // no hold has an expiry with this offset
					assert.Equal(t, peek, peekAfterUndo(l, &s, l.Undo(&s, epoch+offset, 1, id, 0)), "%d", offset)
				}
				assert.Equal(t, epoch+l.Hold, s.LastExpiry())
			} else {
				assert.Zero(t, s.LastExpiry())
				assert.Equal(t, peek.Remaining+1, l.Undo(&s, epoch, 1, id, 0).Remaining, "the id has no effect")
				assert.Equal(t, peek.Remaining, l.TakeHold(&s, epoch, 1, id).Remaining)
			}
		}
	}
}

func holdTimeOf(a Algorithm) int64 {
	if a.HasHolds() {
		return 10 * second
	}
	return 0
}

// peekAfterUndo returns the answer to a peek after an Undo.
func peekAfterUndo(l *Limit, s *State, _ Result) Result { return l.Take(s, epoch, 0) }

func TestAdmittedHitsThatFitOnceMoreNeedNoWait(t *testing.T) {
	checkEachAlgorithm(t, func(t *rapid.T, a Algorithm) {
		l, now, s := drawSmallLimit(t, a), int64(epoch), State{}
		for range 20 {
			now += drawStep(t, l)
			n := rapid.Int64Range(1, 6).Draw(t, "n")
			if r := l.Take(&s, now, n); r.Allowed && n <= r.Remaining {
				assert.Zero(t, r.RetryAfter)
			}
		}
	})
}

func TestFixedWindowKeepsItsEndWhenTheClockGoesBack(t *testing.T) {
	l := mustNew(t, Spec{Requests: 3, Unit: Minute})
	var s State
	start, end := l.WindowAt(epoch)
	assert.Equal(t, start, l.WindowStart(end))
	assert.Equal(t, start+60*second, end)
	require.True(t, l.Take(&s, start, 2).Allowed)
	r := l.Take(&s, start-second, 2)
	assert.Equal(t, Result{Remaining: 1, ResetAfter: 61 * second, RetryAfter: 61 * second}, r)
}

func TestSmallestLeaseHasTwoPermits(t *testing.T) {
	for requests, want := range map[uint32]int64{199: 0, 200: 2, 299: 2, 300: 3} {
		assert.Equal(t, want, mustNew(t, Spec{Requests: requests, Unit: Hour, Lease: true}).MaxLeasePermits())
	}
}

func TestStringShowsTheBurstOfTheSpec(t *testing.T) {
	for want, s := range map[string]Spec{
		"1000 per hour, token_bucket":            {Requests: 1000},
		"1000 per hour, token_bucket, burst 400": {Requests: 1000, Burst: 400},
	} {
		s.Algorithm, s.Unit = TokenBucket, Hour
		assert.Equal(t, want, mustNew(t, s).String())
		s.Lease, s.LeaseWaste = true, 0.1
		assert.Equal(t, want, mustNew(t, s).String(), "permits are a part of the burst")
	}
}

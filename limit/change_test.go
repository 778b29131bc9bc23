package limit

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestChangedNumberKeepsSpentHits spends under one limit and peeks under another limit with the
// same counter.
func TestChangedNumberKeepsSpentHits(t *testing.T) {
	hour := func(a Algorithm, requests, burst uint32) Spec {
		return Spec{Unit: Hour, Algorithm: a, Requests: requests, Burst: burst}
	}
	for _, test := range []struct {
		name         string
		old, changed Spec
		spent        int64
		remaining    int64
	}{
		{"fixed window, raised", hour(FixedWindow, 10, 0), hour(FixedWindow, 20, 0), 4, 16},
		{"fixed window, lowered", hour(FixedWindow, 10, 0), hour(FixedWindow, 3, 0), 4, -1},
		{"sliding window, raised", hour(SlidingWindow, 10, 0), hour(SlidingWindow, 20, 0), 4, 16},
		{"sliding window, lowered", hour(SlidingWindow, 10, 0), hour(SlidingWindow, 3, 0), 4, -1},
		{"sliding log, raised", hour(SlidingLog, 10, 0), hour(SlidingLog, 20, 0), 4, 16},
		{"sliding log, lowered", hour(SlidingLog, 10, 0), hour(SlidingLog, 3, 0), 4, -1},
		{"token bucket, raised, keeps the spent share", hour(TokenBucket, 10, 0), hour(TokenBucket, 20, 0), 4, 12},
		{"token bucket, lowered, keeps the spent share", hour(TokenBucket, 10, 0), hour(TokenBucket, 5, 0), 4, 3},
		{"token bucket, raised, keeps a share that is no whole number of microseconds", hour(TokenBucket, 7, 0), hour(TokenBucket, 14, 0), 1, 12},
		{"token bucket, lowered, keeps a share that is no whole number of microseconds", hour(TokenBucket, 14, 0), hour(TokenBucket, 7, 0), 2, 6},
		{"token bucket, all spent, raised", hour(TokenBucket, 10, 0), hour(TokenBucket, 20, 0), 10, 0},
		{"token bucket, all spent, lowered", hour(TokenBucket, 10, 0), hour(TokenBucket, 1, 0), 10, 0},
		{"a raised burst keeps the spent tokens", hour(TokenBucket, 10, 5), hour(TokenBucket, 10, 50), 4, 46},
		{"a lowered burst keeps the spent tokens", hour(TokenBucket, 10, 50), hour(TokenBucket, 10, 20), 4, 16},
		{"a removed burst keeps the spent tokens", hour(TokenBucket, 10, 50), hour(TokenBucket, 10, 0), 4, 6},
		{"a raised rate keeps the spent tokens", hour(TokenBucket, 10, 50), hour(TokenBucket, 200, 50), 4, 46},
		{"a rate raised to the burst keeps the spent tokens", hour(TokenBucket, 10, 50), hour(TokenBucket, 50, 50), 4, 46},
		{"a lowered rate keeps the spent tokens", hour(TokenBucket, 200, 50), hour(TokenBucket, 10, 50), 4, 46},
		{"a raised rate and burst keep the spent tokens", hour(TokenBucket, 1, 100), hour(TokenBucket, 100, 101), 100, 1},
		{"a raised rate and a lowered burst keep the spent tokens", hour(TokenBucket, 7, 50), hour(TokenBucket, 11, 20), 13, 7},
		{"an added burst keeps the spent tokens at a raised rate", hour(TokenBucket, 10, 0), hour(TokenBucket, 20, 50), 4, 46},
		{"tokens of a rate that does not divide the window are kept exactly", hour(TokenBucket, 7, 50), hour(TokenBucket, 13, 50), 5, 45},
		{"a fast bucket with a lowered rate keeps the spent tokens", hour(TokenBucket, 100, 101), hour(TokenBucket, 1, 101), 60, 41},
		{"a bucket with a much lower rate is at most empty", hour(TokenBucket, 1<<31, 1<<31+1), hour(TokenBucket, 1, 80_000), 1 << 31, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			old, err := New(test.old)
			require.NoError(t, err)
			changed, err := New(test.changed)
			require.NoError(t, err)
			const now = 1_800_000_000 * second
			var s State
			require.True(t, old.Take(&s, now, test.spent).Allowed)
			assert.Equal(t, test.remaining, changed.Take(&s, now, 0).Remaining)
		})
	}
}

// A bucket that alternates between two rates, as between replicas during a rollout, forgets nothing.
func TestChangesOfTheRateForgetNoToken(t *testing.T) {
	slow := must(t, Spec{Unit: Day, Requests: 7, Burst: 50, Algorithm: TokenBucket})
	fast := must(t, Spec{Unit: Day, Requests: 1_000_003, Burst: 50, Algorithm: TokenBucket})
	var s State
	require.True(t, slow.Take(&s, epoch, 4).Allowed)
	for range 100 {
		require.Equal(t, int64(46), fast.Take(&s, epoch, 0).Remaining)
		require.Equal(t, int64(46), slow.Take(&s, epoch, 0).Remaining)
	}
}

// docs/limits.md lists this exception. The state of a bucket has at most its capacity and a
// debt of a window.
func TestBurstLoweredAndRaisedForgetsAtMostTheDifference(t *testing.T) {
	large := must(t, Spec{Unit: Hour, Requests: 1, Burst: 100, Algorithm: TokenBucket})
	small := must(t, Spec{Unit: Hour, Requests: 1, Burst: 10, Algorithm: TokenBucket})
	for hitWhileSmall, want := range map[bool]int64{false: 0, true: 100 - 11} {
		var s State
		require.True(t, large.Take(&s, epoch, 100).Allowed)
		if hitWhileSmall {
			require.False(t, small.Take(&s, epoch, 1).Allowed)
		}
		assert.Equal(t, want, large.Take(&s, epoch, 0).Remaining, "hit while small: %v", hitWhileSmall)
	}
}

func TestLoweredLimitForgetsNoChargedHits(t *testing.T) {
	for _, a := range []Algorithm{SlidingWindow, FixedWindow} {
		var s State
		must(t, Spec{Algorithm: a, Requests: 100, Unit: Second}).Take(&s, epoch, 60)
		lowered := must(t, Spec{Algorithm: a, Requests: 10, Unit: Second, ChargeDenied: true})
		lowered.Take(&s, epoch, 1)
		assert.LessOrEqual(t, lowered.Take(&s, epoch, 0).Remaining, int64(-50), a)
	}
}

func TestClockSetBackByMoreThanAWindowStartsAnew(t *testing.T) {
	const period = int64(1_000_000)
	for a, windows := range map[Algorithm]int64{FixedWindow: 1, FirstHitWindow: 1, SlidingWindow: 2, SlidingLog: 1} {
		for back, want := range map[int64]int64{1: windows*period + 1, period: (windows + 1) * period} {
			var s State
			l := must(t, Spec{Algorithm: a, Requests: 10, Unit: Second})
			l.Take(&s, epoch, 10)
			r := l.Take(&s, epoch-back, 1)
			assert.False(t, r.Allowed, "%s, %d µs back", a, back)
			assert.Equal(t, want, r.ResetAfter, "%s, %d µs back", a, back)
			r = l.Take(&s, epoch-period-1, 1)
			assert.LessOrEqual(t, r.ResetAfter, windows*period, "%s, more than a window back", a)
		}
	}
}

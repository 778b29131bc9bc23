package limit

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestChangedNumberKeepsSpentHits spends under one limit and peeks under another limit with the
// same counter.
func TestChangedNumberKeepsSpentHits(t *testing.T) {
	perHour := func(a Algorithm, requests, burst uint32) Spec {
		return Spec{Unit: Hour, Algorithm: a, Requests: requests, Burst: burst}
	}
	for _, test := range []struct {
		name                 string
		oldSpec, changedSpec Spec
		spentHits            int64
		wantRemaining        int64
	}{
		{"fixed window with a raised limit", perHour(FixedWindow, 10, 0), perHour(FixedWindow, 20, 0), 4, 16},
		{"fixed window with a lowered limit", perHour(FixedWindow, 10, 0), perHour(FixedWindow, 3, 0), 4, -1},
		{"sliding window with a raised limit", perHour(SlidingWindow, 10, 0), perHour(SlidingWindow, 20, 0), 4, 16},
		{"sliding window with a lowered limit", perHour(SlidingWindow, 10, 0), perHour(SlidingWindow, 3, 0), 4, -1},
		{"sliding log with a raised limit", perHour(SlidingLog, 10, 0), perHour(SlidingLog, 20, 0), 4, 16},
		{"sliding log with a lowered limit", perHour(SlidingLog, 10, 0), perHour(SlidingLog, 3, 0), 4, -1},
		{"token bucket with a raised limit keeps the spent share", perHour(TokenBucket, 10, 0), perHour(TokenBucket, 20, 0), 4, 12},
		{"token bucket with a lowered limit keeps the spent share", perHour(TokenBucket, 10, 0), perHour(TokenBucket, 5, 0), 4, 3},
		{"token bucket with a raised limit keeps a share of a fraction of a microsecond", perHour(TokenBucket, 7, 0), perHour(TokenBucket, 14, 0), 1, 12},
		{"token bucket with a lowered limit keeps a share of a fraction of a microsecond", perHour(TokenBucket, 14, 0), perHour(TokenBucket, 7, 0), 2, 6},
		{"empty token bucket with a raised limit", perHour(TokenBucket, 10, 0), perHour(TokenBucket, 20, 0), 10, 0},
		{"empty token bucket with a lowered limit", perHour(TokenBucket, 10, 0), perHour(TokenBucket, 1, 0), 10, 0},
		{"a raised burst keeps the spent tokens", perHour(TokenBucket, 10, 5), perHour(TokenBucket, 10, 50), 4, 46},
		{"a lowered burst keeps the spent tokens", perHour(TokenBucket, 10, 50), perHour(TokenBucket, 10, 20), 4, 16},
		{"a removed burst keeps the spent tokens", perHour(TokenBucket, 10, 50), perHour(TokenBucket, 10, 0), 4, 6},
		{"a raised rate keeps the spent tokens", perHour(TokenBucket, 10, 50), perHour(TokenBucket, 200, 50), 4, 46},
		{"a rate raised to the burst keeps the spent tokens", perHour(TokenBucket, 10, 50), perHour(TokenBucket, 50, 50), 4, 46},
		{"a lowered rate keeps the spent tokens", perHour(TokenBucket, 200, 50), perHour(TokenBucket, 10, 50), 4, 46},
		{"a raised rate and burst keep the spent tokens", perHour(TokenBucket, 1, 100), perHour(TokenBucket, 100, 101), 100, 1},
		{"a raised rate and a lowered burst keep the spent tokens", perHour(TokenBucket, 7, 50), perHour(TokenBucket, 11, 20), 13, 7},
		{"an added burst keeps the spent tokens at a raised rate", perHour(TokenBucket, 10, 0), perHour(TokenBucket, 20, 50), 4, 46},
		{"tokens of a rate that does not divide the window are kept exactly", perHour(TokenBucket, 7, 50), perHour(TokenBucket, 13, 50), 5, 45},
		{"a fast bucket with a lowered rate keeps the spent tokens", perHour(TokenBucket, 100, 101), perHour(TokenBucket, 1, 101), 60, 41},
		{"a bucket with a much lower rate is at most empty", perHour(TokenBucket, 1<<31, 1<<31+1), perHour(TokenBucket, 1, 80_000), 1 << 31, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			oldLimit, err := New(test.oldSpec)
			require.NoError(t, err)
			changedLimit, err := New(test.changedSpec)
			require.NoError(t, err)
			const now = 1_800_000_000 * second
			var s State
			require.True(t, oldLimit.Take(&s, now, test.spentHits).Allowed)
			assert.Equal(t, test.wantRemaining, changedLimit.Take(&s, now, 0).Remaining)
		})
	}
}

// A bucket that alternates between two rates, as between replicas during a rollout, forgets nothing.
func TestChangesOfTheRateForgetNoToken(t *testing.T) {
	slowRate := mustNew(t, Spec{Unit: Day, Requests: 7, Burst: 50, Algorithm: TokenBucket})
	fastRate := mustNew(t, Spec{Unit: Day, Requests: 1_000_003, Burst: 50, Algorithm: TokenBucket})
	var s State
	require.True(t, slowRate.Take(&s, epoch, 4).Allowed)
	for range 100 {
		require.Equal(t, int64(46), fastRate.Take(&s, epoch, 0).Remaining)
		require.Equal(t, int64(46), slowRate.Take(&s, epoch, 0).Remaining)
	}
}

// docs/limits.md lists this exception: the state of a bucket has at most its capacity and the debt of one window, so a
// hit on a smaller bucket forgets the rest.
func TestBurstLoweredAndRaisedForgetsAtMostTheDifference(t *testing.T) {
	largeBurst := mustNew(t, Spec{Unit: Hour, Requests: 1, Burst: 100, Algorithm: TokenBucket})
	smallBurst := mustNew(t, Spec{Unit: Hour, Requests: 1, Burst: 10, Algorithm: TokenBucket})
	for hasHitWhileSmall, want := range map[bool]int64{false: 0, true: 100 - 11} {
		var s State
		require.True(t, largeBurst.Take(&s, epoch, 100).Allowed)
		if hasHitWhileSmall {
			require.False(t, smallBurst.Take(&s, epoch, 1).Allowed)
		}
		assert.Equal(t, want, largeBurst.Take(&s, epoch, 0).Remaining, "a hit came while the burst was small: %v", hasHitWhileSmall)
	}
}

func TestLoweredLimitForgetsNoChargedHits(t *testing.T) {
	for _, a := range []Algorithm{SlidingWindow, FixedWindow} {
		var s State
		mustNew(t, Spec{Algorithm: a, Requests: 100, Unit: Second}).Take(&s, epoch, 60)
		loweredLimit := mustNew(t, Spec{Algorithm: a, Requests: 10, Unit: Second, ChargeDenied: true})
		loweredLimit.Take(&s, epoch, 1)
		assert.LessOrEqual(t, loweredLimit.Take(&s, epoch, 0).Remaining, int64(-50), a)
	}
}

func TestClockSetBackByMoreThanAWindowRestartsTheWindow(t *testing.T) {
	const period = int64(1_000_000)
	for a, windows := range map[Algorithm]int64{FixedWindow: 1, FirstHitWindow: 1, SlidingWindow: 2, SlidingLog: 1} {
		for stepBack, want := range map[int64]int64{1: windows*period + 1, period: (windows + 1) * period} {
			var s State
			l := mustNew(t, Spec{Algorithm: a, Requests: 10, Unit: Second})
			l.Take(&s, epoch, 10)
			r := l.Take(&s, epoch-stepBack, 1)
			assert.False(t, r.Allowed, "%s, %d µs back", a, stepBack)
			assert.Equal(t, want, r.ResetAfter, "%s, %d µs back", a, stepBack)
			r = l.Take(&s, epoch-period-1, 1)
			assert.LessOrEqual(t, r.ResetAfter, windows*period, "%s, more than a window back", a)
		}
	}
}

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
		{"token bucket, all spent, raised", hour(TokenBucket, 10, 0), hour(TokenBucket, 20, 0), 10, 0},
		{"token bucket, all spent, lowered", hour(TokenBucket, 10, 0), hour(TokenBucket, 1, 0), 10, 0},
		{"a raised burst keeps the spent tokens", hour(TokenBucket, 10, 5), hour(TokenBucket, 10, 50), 4, 46},
		{"a slow bucket with a raised rate is at most empty", hour(TokenBucket, 1, 100), hour(TokenBucket, 100, 101), 100, 0},
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

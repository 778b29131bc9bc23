package local

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

func TestResetByPrefixResetsOnlyOlderCountersWithThePrefix(t *testing.T) {
	for _, allOrNone := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := New(Options{})
			lim, err := limit.New(limit.Spec{Requests: 100, Unit: limit.Hour, Algorithm: limit.SlidingLog})
			require.NoError(t, err)
			remainingAfter := func(key string, n int64) int64 {
				results := make([]backend.Result, 1)
				l.Take(t.Context(), time.Now(), []backend.Hit{{Key: []byte(key), Limit: lim, N: n, AllOrNone: allOrNone}}, results)
				return results[0].Remaining
			}
			reset := func(p backend.KeyPrefix, dryRun bool) {
				r, err := l.ResetPrefix(t.Context(), p, 1, dryRun)
				require.NoError(t, err)
				assert.Equal(t, backend.PrefixReset{Counters: -1}, r)
			}
			for _, key := range []string{"d|a=1", "d|a=1|b=2", "d|a=12"} {
				remainingAfter(key, 10)
			}
			reset(backend.KeyPrefix{Start: "d|a=1"}, true)
			assert.EqualValues(t, 90, remainingAfter("d|a=1", 0), "a dry run resets nothing")
			reset(backend.KeyPrefix{Start: "d|a=1"}, false)
			assert.EqualValues(t, 99, remainingAfter("d|a=1", 1))
			assert.EqualValues(t, 98, remainingAfter("d|a=1", 1), "the reset takes effect once")
			assert.EqualValues(t, 100, remainingAfter("d|a=1|b=2", 0))
			assert.EqualValues(t, 90, remainingAfter("d|a=12", 0))
			reset(backend.KeyPrefix{Start: "d|", EndsAnywhere: true}, false)
			assert.EqualValues(t, 100, remainingAfter("d|a=12", 0))
			assert.EqualValues(t, 100, remainingAfter("d|a=1", 0))

			remainingAfter("d|x=1", 1) // the reset is remembered while an older counter exists
			for i := range maxResets - 2 {
				reset(backend.KeyPrefix{Start: fmt.Sprintf("d|a=%d", i)}, false)
			}
			reset(backend.KeyPrefix{Start: "d|new"}, false)
			_, err = l.ResetPrefix(t.Context(), backend.KeyPrefix{Start: "d|one too many"}, 1, false)
			require.ErrorContains(t, err, "more than 64 resets by prefix")
			time.Sleep(3 * time.Hour)
			reset(backend.KeyPrefix{Start: "d|later"}, false)
			assert.Len(t, *l.resets.list.Load(), 1, "old resets are forgotten")
		})
	}
}

package redis_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

func TestLateAnswerOfAllOrNoneHitsSaysWhetherTheyAreCharged(t *testing.T) {
	s := redistest.Start(t)
	plainLimiter := open(t, redis.Options{Main: redis.Server{URL: s.Addr}})
	l := backendtest.AllOrNone(plainLimiter)
	wideLimit, narrowLimit := perDay(t, 100), perDay(t, 2)
	awaitRecovery(t, plainLimiter, wideLimit)
	for _, c := range []struct {
		hitsOnNarrow int64
		isCharged    bool
	}{{2, true}, {1, false}} {
		s.Pause()
		results := take(l, hit("wide", wideLimit, 1), hit("narrow", narrowLimit, c.hitsOnNarrow))
		s.Resume()
		for i, r := range results {
			var lateError *backend.LateError
			require.ErrorAs(t, r.Err, &lateError)
			lateResults := make(chan backend.Result, 1)
			lateError.OnArrival(func(r backend.Result) { lateResults <- r })
			select {
			case answer := <-lateResults:
				assert.NoError(t, answer.Err)
				assert.Equal(t, c.isCharged, answer.Allowed, "hit %d", i)
			case <-time.After(testTimeout):
				require.Fail(t, "no late answer")
			}
		}
	}
	assert.Equal(t, wideLimit.Max()-1, take(l, hit("wide", wideLimit, 0))[0].Remaining)
}

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
	ungrouped := open(t, redis.Options{Main: redis.Server{URL: s.Addr}})
	l := backendtest.AllOrNone(ungrouped)
	wide, narrow := perDay(t, 100), perDay(t, 2)
	awaitRecovery(t, ungrouped, wide)
	for _, c := range []struct {
		hitsOnNarrow int64
		isCharged    bool
	}{{2, true}, {1, false}} {
		s.Pause()
		results := take(l, hit("wide", wide, 1), hit("narrow", narrow, c.hitsOnNarrow))
		s.Resume()
		for i, r := range results {
			var late *backend.LateError
			require.ErrorAs(t, r.Err, &late)
			arrived := make(chan backend.Result, 1)
			late.OnArrival(func(r backend.Result) { arrived <- r })
			select {
			case answer := <-arrived:
				assert.NoError(t, answer.Err)
				assert.Equal(t, c.isCharged, answer.Allowed, "hit %d", i)
			case <-time.After(testTimeout):
				require.Fail(t, "no late answer")
			}
		}
	}
	assert.Equal(t, wide.Max()-1, take(l, hit("wide", wide, 0))[0].Remaining)
}

package redis_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/limit"
)

func TestAnswerComesAfterTheReplicaHasTheCharge(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	replica := s.StartReplica(t)
	masterClient, replicaClient := s.Client(t), replica.Client(t)
	s.AwaitReplica(t)
	l, lim := open(t, redis.Options{Main: redis.Server{URL: s.Addr}, WaitReplicas: 1, Timeout: testTimeout}), perDay(t, 1000)
	for i := range 100 {
		key := fmt.Sprint("key", i)
		require.NoError(t, take(l, hit(key, lim, 1))[0].Err)
		require.NotEmpty(t, replicaClient.Get(t.Context(), windowName("v2:fw86400:"+key, lim)).Val(), "the answer came before the replica had the charge")
	}
	require.NoError(t, masterClient.ScriptFlush(t.Context()).Err())
	require.NoError(t, take(l, hit("key", lim, 1))[0].Err)

	replica.Kill()
	start := time.Now()
	got := take(l, hit("key", lim, 1))[0]
	require.NoError(t, got.Err, "a charge without a replica is answered too")
	assert.Equal(t, int64(998), got.Remaining)
	assert.Less(t, time.Since(start), testTimeout/2)
}

func TestHitsAreDecidedWhileReplicasAreMissing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		start func(t *testing.T, s *redistest.Server) (replica *redistest.Server)
	}{
		{"no replica", func(*testing.T, *redistest.Server) *redistest.Server { return nil }},
		{"stopped replica", func(t *testing.T, s *redistest.Server) *redistest.Server {
			replica := s.StartReplica(t)
			s.AwaitReplica(t)
			replica.Pause()
			return replica
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t, "--hz", "1", "--dynamic-hz", "no") // WAIT of an idle Redis can end a second too late
			replica := c.start(t, s)
			recorder := &batchRecorder{}
			l := open(t, redis.Options{Main: redis.Server{URL: s.Addr}, WaitReplicas: 1, Timeout: time.Second, Observer: recorder})
			lim := perDay(t, 1000)
			start := time.Now()
			calls := int64(0)
			for time.Since(start) < 3*time.Second { // long enough that rls stops and resumes WAIT several times
				calls++
				for key, lim := range map[string]*limit.Limit{"script": lim, "plain commands": newPlainLimit(t, 1000)} {
					r := take(l, hit(key, lim, 1))[0]
					require.NoError(t, r.Err)
					require.Equal(t, 1000-min(calls, 1000), r.Remaining)
				}
				time.Sleep(10 * time.Millisecond)
			}
			assert.Equal(t, 2*calls, recorder.batches.Load())
			assert.Equal(t, 2*calls, recorder.batchesWithTooFewReplicas.Load(), "each batch is counted")
			if replica == nil {
				return
			}
			replica.Resume()
			s.AwaitReplica(t)
			polltest.Until(t, testTimeout, func() bool {
				missingBefore := recorder.batchesWithTooFewReplicas.Load()
				require.NoError(t, take(l, hit("other", lim, 1))[0].Err)
				return recorder.batchesWithTooFewReplicas.Load() == missingBefore
			})
		})
	}
}

// batchRecorder counts batches, and batches with HasTooFewReplicas.
type batchRecorder struct{ batches, batchesWithTooFewReplicas atomic.Int64 }

func (r *batchRecorder) BatchDone(b redis.Batch) {
	r.batches.Add(1)
	if b.HasTooFewReplicas {
		r.batchesWithTooFewReplicas.Add(1)
	}
}

func (*batchRecorder) ErrorOccurred(redis.Role, redis.ErrorKind) {}

func (*batchRecorder) CountersLost(redis.Role, bool) {}

func TestNoBatchWaitsForASecondAfterAWaitForMissingReplicas(t *testing.T) {
	t.Parallel()
	s, recorder := redistest.Start(t), &batchRecorder{}
	l := open(t, redis.Options{Main: redis.Server{URL: s.Addr}, WaitReplicas: 1, Timeout: 800 * time.Millisecond, Observer: recorder})
	start := time.Now()
	for range 3 {
		require.NoError(t, take(l, hit("key", perDay(t, 100), 1))[0].Err)
	}
	if time.Since(start) < time.Second { // otherwise the machine is too slow for this test
		assert.Equal(t, 1, commandCalls(t, s)["wait"])
	}
	assert.EqualValues(t, 3, recorder.batchesWithTooFewReplicas.Load())
}

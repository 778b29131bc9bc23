package redis_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/limit"
)

// Three replicas share one counter. Each replica has 32 callers.
func TestReplicasShareALimitExactly(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	for _, a := range limit.Algorithms() {
		for _, chargeDenied := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, denied hits charged: %v", a, chargeDenied), func(t *testing.T) {
				lim := newLimit(t, limit.Spec{Algorithm: a, Requests: 500, Unit: limit.Year, ChargeDenied: chargeDenied})
				var admittedHits atomic.Int64
				var callerGroup sync.WaitGroup
				key := t.Name()
				for range 3 {
					l := open(t, redis.Options{Main: redis.Server{URL: db.Addr}, KeyPrefix: db.Prefix, Timeout: testTimeout})
					for range 32 {
						callerGroup.Go(func() {
							for range 10 {
								r := take(l, hit(key, lim, 1))[0]
								if assert.NoError(t, r.Err) && r.Allowed {
									admittedHits.Add(1)
								}
							}
						})
					}
				}
				callerGroup.Wait()
				assert.Equal(t, int64(500), admittedHits.Load())
			})
		}
	}
}

func TestClockOfRedisDecidesAndNotTheCallersClock(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	l := open(t, redis.Options{Main: redis.Server{URL: db.Addr}, KeyPrefix: db.Prefix, Timeout: testTimeout})
	for _, a := range limit.Algorithms() {
		lim := newLimit(t, limit.Spec{Algorithm: a, Requests: 10, Unit: limit.Hour, Multiplier: 24 * 365})
		for i := range 12 {
			results := make([]backend.Result, 1)
			now := time.Now().Add([]time.Duration{0, time.Hour, -time.Hour}[i%3])
			l.Take(context.Background(), now, []backend.Hit{hit("key", lim, 1)}, results)
			require.NoError(t, results[0].Err)
			assert.Equal(t, i < 10, results[0].Allowed, "%s, hit %d", a, i)
		}
	}
}

// A history is linearizable if the calls have an order that explains all answers, and each call takes effect
// between its start and its end.
func TestConcurrentAnswersAreLinearizable(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	const callers, calls = 6, 12
	for _, a := range limit.Algorithms() {
		t.Run(a.String(), func(t *testing.T) {
			lim := newLimit(t, limit.Spec{Algorithm: a, Requests: 20, Unit: limit.Year, ChargeDenied: a.DefaultChargeDenied()})
			var mu sync.Mutex
			var history []porcupine.Operation
			var callerGroup sync.WaitGroup
			start := time.Now()
			for caller := range callers {
				l := open(t, redis.Options{Main: redis.Server{URL: db.Addr}, KeyPrefix: db.Prefix, Timeout: testTimeout})
				callerGroup.Go(func() {
					for i := range calls {
						n := []int64{1, 2, 0, -1}[(caller+i)%4]
						op := porcupine.Operation{ClientId: caller, Input: n, Call: int64(time.Since(start))}
						r := take(l, hit(t.Name(), lim, n))[0]
						op.Return, op.Output = int64(time.Since(start)), r.Result
						require.NoError(t, r.Err)
						mu.Lock()
						history = append(history, op)
						mu.Unlock()
					}
				})
			}
			callerGroup.Wait()
			assert.True(t, porcupine.CheckOperations(counterModel(lim), history))
		})
	}
}

// counterModel is a model of a counter of lim that forgets no hits, because the test is short. Its state is the
// number of spent hits.
func counterModel(lim *limit.Limit) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return int64(0) },
		Step: func(state, input, output any) (bool, any) {
			spent, n, r := state.(int64), input.(int64), output.(limit.Result)
			isAllowed := spent+n <= lim.Max()
			switch {
			case n < 0:
				isAllowed, spent = true, max(spent+n, 0)
			case n == 0:
				isAllowed = spent < lim.Max() || lim.Algorithm.ResetsAtWindowEnd() && spent == lim.Max()
			case isAllowed || lim.ChargeDenied:
				spent += n
			}
			return isAllowed == r.Allowed && r.Remaining == lim.Max()-spent, spent
		},
	}
}

func TestKeysAreAsDocumentedAndAllExpire(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	l := open(t, redis.Options{Main: redis.Server{URL: db.Addr}, KeyPrefix: db.Prefix, Timeout: testTimeout, Jitter: time.Minute})
	for i := range 200 {
		for _, a := range limit.Algorithms() {
			lim := newLimit(t, limit.Spec{Algorithm: a, Requests: 4, Unit: limit.Minute, ChargeDenied: i%2 == 0})
			take(l, hit(fmt.Sprint("key", i%50), lim, int64(i%5-1)), hit(fmt.Sprint("key", i%3), lim, 1))
		}
	}
	keys := db.Keys(t)
	assert.NotEmpty(t, keys)
	client := db.Client(t)
	for _, key := range keys {
		assert.Regexp(t, `^t\d+:(v1:((fh|sl|sw|tb)60|cc):key\d+|v2:fw60:key\d+@\d{10})$`, key)
		ttl := client.PTTL(t.Context(), key).Val()
		assert.True(t, ttl > 0 || ttl == -2, "%s lives %v", key, ttl)
		assert.LessOrEqual(t, ttl, 3*time.Minute+2*testTimeout+time.Second)
	}
}

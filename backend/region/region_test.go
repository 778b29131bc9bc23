package region_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/denycache"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/backend/region"
	"github.com/seed-81f232ab/rls/internal/testkit/proctest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/limit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, proctest.IgnoreStarter()) }

const regionCount = 3

var testRegions = limit.Regions{Count: regionCount, Floor: 0.1, Waste: 0.25}

// world has three regions with two replicas each, and the Redis of all regions.
type world struct {
	global   *redistest.Server
	ledger   *brokenLedger
	replicas [regionCount][2]*region.Limiter
	redis    [regionCount]*redistest.Server

	purchaseTrips atomic.Int64 // the trips to the Redis servers of the regions for purchases
}

// countingLimiter counts the trips of purchases.
type countingLimiter struct {
	backend.Limiter
	trips *atomic.Int64
}

func (l countingLimiter) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	l.trips.Add(1)
	l.Limiter.Take(ctx, now, hits, results)
}

// brokenLedger is a Ledger that is far away and can fail.
type brokenLedger struct {
	backend.Ledger
	isCutOff [regionCount]atomic.Bool
	standby  atomic.Pointer[redis.Ledger] // replaces the Ledger after a failover

	tripsInFlight atomic.Int64

	orders, lateOrders atomic.Int64 // a late order has an answer after the end of its window
}

// delay is the time of a trip to the ledger in one direction.
const delay = 20 * time.Millisecond

var errCutOff = fmt.Errorf("cut off")

func (l *brokenLedger) Buy(ctx context.Context, orders []*backend.Order) {
	l.tripsInFlight.Add(1)
	defer l.tripsInFlight.Add(-1)
	if l.isCutOff[orders[0].Region[0]-'0'].Load() {
		for _, o := range orders {
			o.Err = errCutOff
		}
		return
	}
	time.Sleep(delay)
	if standby := l.standby.Load(); standby != nil {
		standby.Buy(ctx, orders)
	} else {
		l.Ledger.Buy(ctx, orders)
	}
	time.Sleep(delay)
	for _, o := range orders {
		l.orders.Add(1)
		if o.WindowEnd < time.Now().UnixMicro() {
			l.lateOrders.Add(1)
		}
	}
}

func newClient(t *testing.T, server *redistest.Server) *redis.Limiter {
	c, err := redis.New(redis.Options{Main: redis.Server{URL: server.Addr}, Timeout: 10 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

func newWorld(t *testing.T) *world {
	w := &world{global: redistest.Start(t)}
	w.ledger = &brokenLedger{Ledger: redis.Ledger{Limiter: newClient(t, w.global)}}
	ctx, stop := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	t.Cleanup(func() { stop(); runs.Wait() })
	for i := range regionCount {
		w.redis[i] = redistest.Start(t)
		for j := range w.replicas[i] {
			client := newClient(t, w.redis[i])
			l := region.New(region.Options{
				Next:     denycache.New(backend.Counters{Limiter: client}, denycache.Options{SizeBytes: 1 << 16}),
				Counters: countingLimiter{client, &w.purchaseTrips}, ServerTime: client.ServerTime,
				Ledger: w.ledger, Regions: testRegions, Region: fmt.Sprint(i), OnTrip: func(error) {},
			})
			w.replicas[i][j] = l
			runs.Go(func() { l.Run(ctx) })
		}
	}
	return w
}

func take(t *testing.T, l backend.Limiter, key string, lim *limit.Limit, n int64) backend.Result {
	results := make([]backend.Result, 1)
	l.Take(t.Context(), time.Now(), []backend.Hit{{Key: []byte(key), Limit: lim, N: n}}, results)
	assert.NoError(t, results[0].Err)
	return results[0]
}

// callFor calls from some regions for a time, and returns the hits that each region has admitted.
func (w *world) callFor(t *testing.T, d time.Duration, lim *limit.Limit, pause time.Duration, regions ...int) (admitted [regionCount]int64) {
	var callers sync.WaitGroup
	end := time.Now().Add(d)
	for _, i := range regions {
		for _, l := range w.replicas[i] {
			for range 2 {
				callers.Go(func() {
					for time.Now().Before(end) {
						if take(t, l, "acme", lim, 1).Allowed {
							atomic.AddInt64(&admitted[i], 1)
						}
						time.Sleep(pause)
					}
				})
			}
		}
	}
	callers.Wait()
	return admitted
}

func sum(numbers [regionCount]int64) (n int64) {
	for _, k := range numbers {
		n += k
	}
	return n
}

// callUntil calls until the regions have admitted want hits, and half a second longer.
func (w *world) callUntil(t *testing.T, want int64, lim *limit.Limit, regions ...int) (admitted [regionCount]int64) {
	for start, isLast := time.Now(), false; !isLast; {
		isLast = sum(admitted) >= want || time.Since(start) > 30*time.Second
		for i, n := range w.callFor(t, 500*time.Millisecond, lim, time.Millisecond, regions...) {
			admitted[i] += n
		}
	}
	return admitted
}

func TestRegionsTogetherAdmitExactlyTheLimit(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindow} {
		t.Run(algorithm.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			lim := backendtest.NewLimit(t, limit.Spec{Algorithm: algorithm, Requests: 3000, Unit: limit.Year, Scope: limit.Global, ChargeDenied: algorithm.DefaultChargeDenied()})
			floors := int64(0)
			if algorithm == limit.SlidingWindow { // half of the floors is for the next window
				floors = 150
			}
			admitted := w.callUntil(t, 3000-floors, lim, 0, 1, 2)
			assert.Equal(t, 3000-floors, sum(admitted), admitted)
			for i := range admitted {
				assert.Greater(t, admitted[i], int64(500), "demand is equal: %v", admitted)
			}
		})
	}
}

func TestRegionWithAllDemandGetsAllButTheFloorsOfOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lim := backendtest.NewLimit(t, limit.Spec{Requests: 3000, Unit: limit.Year, Scope: limit.Global, ChargeDenied: true})
	assert.EqualValues(t, 2800, sum(w.callUntil(t, 2800, lim, 1)))
	assert.EqualValues(t, 200, sum(w.callUntil(t, 200, lim, 0, 2)), "the floors of the others")
}

func TestRegionThatIsCutOffAdmitsWhatItHasBoughtAndItsFloor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lim := backendtest.NewLimit(t, limit.Spec{Requests: 3000, Unit: limit.Year, Scope: limit.Global, ChargeDenied: true})
	w.ledger.isCutOff[2].Store(true)
	assert.EqualValues(t, 100, sum(w.callFor(t, 500*time.Millisecond, lim, time.Millisecond, 2)), "the floor")
	w.ledger.isCutOff[2].Store(false)
	first := w.callFor(t, 500*time.Millisecond, lim, 5*time.Millisecond, 2)
	assert.Greater(t, sum(first), int64(0))
	w.ledger.isCutOff[2].Store(true)
	stats := w.replicas[2][0].Stats()
	assert.Greater(t, stats.UnusedHits, int64(0))
	assert.LessOrEqual(t, stats.UnusedHits, int64(750))
	cutOff := w.callFor(t, time.Second, lim, time.Millisecond, 2)
	assert.LessOrEqual(t, sum(cutOff), int64(750), "at most the waste")
	hit := backend.Hit{Key: []byte("acme"), Limit: lim}
	peeks := make([]backend.Peek, 1)
	w.replicas[2][0].Peek(t.Context(), time.Now(), []backend.Hit{hit}, peeks)
	assert.Zero(t, peeks[0].Remaining, "nothing can be bought")
	assert.True(t, w.replicas[2][0].HeldHits(&hit).CutOff)
	others := w.callUntil(t, 2900-sum(first)-sum(cutOff), lim, 0, 1, 2)
	assert.EqualValues(t, 3000, 100+sum(first)+sum(cutOff)+sum(others))
	assert.LessOrEqual(t, others[2], int64(1), "a purchase in flight")
}

func TestRegionWhoseRedisHasLostItsCountersAdmitsItsFloorAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lim := backendtest.NewLimit(t, limit.Spec{Requests: 3000, Unit: limit.Year, Scope: limit.Global, ChargeDenied: true})
	require.Greater(t, sum(w.callFor(t, time.Second, lim, 2*time.Millisecond, 1)), int64(400))
	w.ledger.isCutOff[1].Store(true)
	w.callFor(t, 200*time.Millisecond, lim, 20*time.Millisecond, 1) // a purchase in flight ends
	require.NoError(t, w.redis[1].Client(t).FlushAll(t.Context()).Err())
	again := sum(w.callFor(t, time.Second, lim, 5*time.Millisecond, 1))
	assert.LessOrEqual(t, again, int64(200), "the floor of 100, and the hits until the replicas notice the loss")
}

func TestRegionBuysNoHitsThatArriveAfterTheirWindow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lim := backendtest.NewLimit(t, limit.Spec{Algorithm: limit.TokenBucket, Requests: 600, Burst: 240, Unit: limit.Second, Scope: limit.Global})
	w.callFor(t, 3*time.Second, lim, time.Millisecond, 1) // windows of 100 ms, and a round trip of 40 ms
	late, all := w.ledger.lateOrders.Load(), w.ledger.orders.Load()
	require.Greater(t, all, int64(10))
	assert.Less(t, late*8, all, "%d of %d orders were late", late, all)
}

func TestFailoverOfGlobalRedisAddsAtMostWhatWasSoldInItsGap(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	standby := w.global.StartReplica(t)
	w.global.AwaitReplica(t)
	standbyLedger := redis.Ledger{Limiter: newClient(t, standby)}
	lim := backendtest.NewLimit(t, limit.Spec{Requests: 3000, Unit: limit.Year, Scope: limit.Global, ChargeDenied: true})
	admitted := sum(w.callFor(t, 500*time.Millisecond, lim, 4*time.Millisecond, 0, 1, 2))
	require.NoError(t, standby.Client(t).ReplicaOf(t.Context(), "no", "one").Err()) // the gap begins
	admitted += sum(w.callFor(t, 300*time.Millisecond, lim, 4*time.Millisecond, 0, 1, 2))
	for i := range w.ledger.isCutOff { // the old Redis sells nothing more
		w.ledger.isCutOff[i].Store(true)
	}
	require.Eventually(t, func() bool { return w.ledger.tripsInFlight.Load() == 0 }, 10*time.Second, time.Millisecond)
	soldInGap := soldHits(t, w.global) - soldHits(t, standby)
	w.global.Kill()
	w.ledger.standby.Store(&standbyLedger)
	for i := range w.ledger.isCutOff {
		w.ledger.isCutOff[i].Store(false)
	}
	admitted += sum(w.callUntil(t, 3000+soldInGap-admitted, lim, 0, 1, 2))
	require.Greater(t, soldInGap, int64(0))
	assert.LessOrEqual(t, admitted, 3000+soldInGap)
	assert.GreaterOrEqual(t, admitted, int64(3000), "all hits can be sold, and orders in flight are lost")
	t.Logf("%d hits were sold in the gap, and %d admitted of 3000", soldInGap, admitted)
}

// soldHits returns how many hits the ledger in a Redis has sold.
func soldHits(t *testing.T, server *redistest.Server) (n int64) {
	client := server.Client(t)
	keys, err := client.Keys(t.Context(), "*@*").Result()
	require.NoError(t, err)
	for _, key := range keys {
		sold, err := client.HGet(t.Context(), key, "sold").Int64()
		if !errors.Is(err, goredis.Nil) {
			require.NoError(t, err)
		}
		n += sold
	}
	return n
}

func TestRegionsAdmitAtMostTheLimitInEachShortWindow(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindow, limit.TokenBucket} {
		t.Run(algorithm.String(), func(t *testing.T) {
			t.Parallel()
			const requests, burst, duration = 600, 900, 6
			w := newWorld(t)
			spec := limit.Spec{Algorithm: algorithm, Requests: requests, Unit: limit.Second, Multiplier: 1, Scope: limit.Global, ChargeDenied: algorithm.DefaultChargeDenied()}
			if algorithm.UsesBurst() {
				spec.Burst = burst
			}
			lim := backendtest.NewLimit(t, spec)
			for _, regions := range [][]int{{0, 1, 2}, {1}} {
				var mu sync.Mutex
				var calls, admitted int
				windows := map[int64]int{} // the admitted hits by the start of their window
				var callers sync.WaitGroup
				start := time.Now()
				for _, i := range regions {
					for _, l := range w.replicas[i] {
						callers.Go(func() {
							for time.Since(start) < duration*time.Second {
								r := take(t, l, "acme", lim, 1)
								mu.Lock()
								if calls++; r.Allowed {
									admitted++
									windows[r.WindowStart]++
								}
								mu.Unlock()
								time.Sleep(time.Millisecond)
							}
						})
					}
				}
				callers.Wait()
				if algorithm.UsesBurst() {
					assert.LessOrEqual(t, admitted, burst+int(lim.RefilledTokens(time.Since(start).Microseconds())))
				} else {
					for start, n := range windows {
						assert.LessOrEqual(t, n, requests, "window %d: %v", start, windows)
					}
				}
				t.Logf("%s: %v admitted %d of %d calls, with %d hits in the windows", algorithm, regions, admitted, calls, duration*requests)
				assert.Greater(t, admitted, min(calls, duration*requests)*4/10)
			}
		})
	}
}

func TestKeysThatNeedOnlyTheirFloorBuyNothing(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []limit.Algorithm{limit.FixedWindow, limit.TokenBucket} {
		t.Run(algorithm.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			lim := backendtest.NewLimit(t, limit.Spec{Algorithm: algorithm, Requests: 10_000, Unit: limit.Second, Scope: limit.Global, ChargeDenied: algorithm.DefaultChargeDenied()})
			for end := time.Now().Add(2500 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
				assert.True(t, take(t, w.replicas[0][0], "acme", lim, 1).Allowed)
			}
			assert.Zero(t, w.purchaseTrips.Load())
		})
	}
}

func TestFirstCallsPassInAllRegions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lim := backendtest.NewLimit(t, limit.Spec{Requests: 10, Unit: limit.Year, Scope: limit.Global, ChargeDenied: true})
	for i := range w.replicas {
		assert.True(t, take(t, w.replicas[i][0], "acme", lim, 1).Allowed, "region %d", i)
	}
	var admitted int64 = regionCount
	require.Eventually(t, func() bool {
		if take(t, w.replicas[0][1], "acme", lim, 1).Allowed {
			admitted++
		}
		return admitted == 10
	}, 5*time.Second, 20*time.Millisecond)
	assert.False(t, take(t, w.replicas[0][0], "acme", lim, 1).Allowed)
}

func TestLargeHitPassesIfTheLimitHasRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lim := backendtest.NewLimit(t, limit.Spec{Requests: 1000, Unit: limit.Year, Scope: limit.Global, ChargeDenied: true})
	r := take(t, w.replicas[0][0], "acme", lim, 900)
	assert.False(t, r.Allowed)
	require.Eventually(t, func() bool { return take(t, w.replicas[0][0], "acme", lim, 900).Allowed }, 2*time.Second, 10*time.Millisecond)
	assert.False(t, take(t, w.replicas[1][0], "acme", lim, 900).Allowed)
	r = take(t, w.replicas[1][0], "acme", lim, 1001)
	assert.EqualValues(t, limit.Never, r.RetryAfter)
}

func TestResetGivesTheWholeLimitAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lim := backendtest.NewLimit(t, limit.Spec{Requests: 300, Unit: limit.Year, Scope: limit.Global, ChargeDenied: true})
	assert.EqualValues(t, 280, sum(w.callUntil(t, 280, lim, 0)))
	assert.EqualValues(t, 300, take(t, w.replicas[0][0], "acme", lim, -limit.MaxHits).Remaining)
	w.replicas[0][1].Forget(&backend.Hit{Key: []byte("acme"), Limit: lim})
	assert.EqualValues(t, 280, sum(w.callUntil(t, 280, lim, 0)))
}

func TestGroupChargesAllItsHitsOrNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	global := backendtest.NewLimit(t, limit.Spec{Requests: 300, Unit: limit.Year, Scope: limit.Global, ChargeDenied: true})
	small := backendtest.NewLimit(t, limit.Spec{Requests: 50, Unit: limit.Year})
	takeGroup := func(j int, n int64) bool {
		hits := []backend.Hit{{Key: []byte("acme"), Limit: global, N: n, AllOrNone: true}, {Key: []byte("s"), Limit: small, N: n, AllOrNone: true}}
		results := make([]backend.Result, 2)
		w.replicas[0][j].Take(t.Context(), time.Now(), hits, results)
		assert.NoError(t, results[0].Err)
		assert.NoError(t, results[1].Err)
		return results[0].Allowed && results[1].Allowed
	}
	admitted := 0
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if takeGroup(admitted%2, 1) {
			admitted++
		}
	}
	assert.Equal(t, 50, admitted, "the small limit denies")
	assert.EqualValues(t, 280-50, sum(w.callUntil(t, 230, global, 0)), "denied groups have charged nothing")
}

func TestReplicaThatWasIdleNoticesThatTheRedisOfItsRegionHasLostItsCounters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lim := backendtest.NewLimit(t, limit.Spec{Requests: 3000, Unit: limit.Year, Scope: limit.Global, ChargeDenied: true})
	busy, idle := w.replicas[1][0], w.replicas[1][1]
	admitted := func(l backend.Limiter, calls int64, pause time.Duration) (n int64) {
		for range calls {
			if take(t, l, "acme", lim, 1).Allowed {
				n++
			}
			time.Sleep(pause)
		}
		return n
	}
	held := func() *region.HeldHits { return idle.HeldHits(&backend.Hit{Key: []byte("acme"), Limit: lim}) }
	take(t, idle, "acme", lim, 1900)
	require.Eventually(t, func() bool { return held().Bought >= 1800 }, 5*time.Second, time.Millisecond)
	admitted(idle, 20, 100*time.Millisecond) // its demand is low now
	w.ledger.isCutOff[1].Store(true)
	rest := held().Left - 5
	require.Equal(t, rest, admitted(busy, rest, 0))
	require.NoError(t, w.redis[1].Client(t).FlushAll(t.Context()).Err())
	again := admitted(busy, 100, 0) + admitted(idle, 200, time.Millisecond)
	assert.LessOrEqual(t, again, int64(120), "the floor of 100, and the hits until the replicas notice the loss")
}

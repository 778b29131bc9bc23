package simulate

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/backend/region"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/test/simulate/redismodel"
	"github.com/seed-81f232ab/rls/test/simulate/resp"
)

var regionReplicas = flag.Int("region-replicas", 4, "replicas of each region in the simulation of many replicas")

const (
	scaleRegions  = 5
	replicaCalls  = 2000 // calls a second of a replica, on average
	scaleKeys     = 20
	callPause     = 10 * time.Millisecond // each replica calls for all keys in turn, then pauses
	scaleDuration = 8 * time.Second       // before and after the demand moves
	sampleTime    = 50 * time.Millisecond
)

// roundTrips are the times from the regions to the global Redis and back.
var roundTrips = [scaleRegions]time.Duration{35e6, 60e6, 80e6, 120e6, 150e6}

// demandParts are the parts of the demand that the regions have. Then the parts of the first two regions change places.
var demandParts = [scaleRegions]float64{0.6, 0.1, 0.1, 0.1, 0.1}

var scaleSettings = limit.Regions{Count: scaleRegions, Floor: 0.1, Waste: 0.25}

// regionCounters are the counters of a region, as its Redis counts them.
type regionCounters struct {
	mu     sync.Mutex
	states map[string]*limit.State
}

func (c *regionCounters) Take(_ context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, h := range hits {
		at, name := now.UnixMicro(), string(h.Key)+h.Limit.Tag()
		if h.Limit.Algorithm == limit.FixedWindow {
			start, _ := h.Limit.WindowAt(at)
			if h.WindowStart > 0 {
				start = h.WindowStart
			}
			at, name = max(at, start), fmt.Sprint(name, start)
		}
		s := c.states[name]
		if s == nil {
			s = &limit.State{}
			c.states[name] = s
		}
		results[i] = backend.Result{Result: h.Limit.TakeHold(s, at, h.N, h.HoldID), Source: backend.SourceRedis}
	}
}

func (c *regionCounters) Peek(context.Context, time.Time, []backend.Hit, []backend.Peek) {}
func (c *regionCounters) Forget(*backend.Hit)                                            {}

// farLedger is the ledger of a region that has a round trip to the global Redis.
type farLedger struct {
	backend.Ledger
	world  *scaleWorld
	region int
}

func (l farLedger) Buy(ctx context.Context, orders []*backend.Order) {
	time.Sleep(roundTrips[l.region] / 2)
	l.Ledger.Buy(ctx, orders)
	time.Sleep(roundTrips[l.region] / 2)
	l.world.mu.Lock()
	defer l.world.mu.Unlock()
	l.world.orders += len(orders)
	for _, o := range orders {
		assert.True(l.world.testing, o.Err == nil || ctx.Err() != nil, o.Err)
		l.world.windowOf(o.WindowStart, l.region, o.Key[0]).bought += o.Granted
	}
}

type scaleWorld struct {
	testing *testing.T
	mu      sync.Mutex // guards the fields below
	orders  int
	calls   int64
	windows map[windowID]*windowHits
	samples map[time.Duration]*[scaleRegions]sampling // by the time since the start
}

// windowID is a window of a counter in a region.
type windowID struct {
	start  int64
	region int
	key    byte
}

type windowHits struct{ bought, admitted int64 }

func (w *scaleWorld) windowOf(start int64, region int, key byte) *windowHits {
	id := windowID{start, region, key}
	if w.windows[id] == nil {
		w.windows[id] = &windowHits{}
	}
	return w.windows[id]
}

type sampling struct{ calls, admitted int64 }

// newScaleLedger returns a ledger with the real script on a simulated Redis.
func newScaleLedger(t *testing.T) backend.Ledger {
	server := redismodel.New()
	t.Cleanup(server.Close)
	var mu sync.Mutex
	serve := func(conn net.Conn) {
		replies := make(chan []byte, 1024) // the client reads the replies after it has written all commands
		defer close(replies)
		go func() {
			for reply := range replies {
				_, _ = conn.Write(reply)
			}
		}()
		for r := bufio.NewReader(conn); ; {
			args, err := resp.ReadCommand(r)
			if err != nil {
				return
			}
			mu.Lock()
			replies <- resp.AppendReply(nil, server.Do(time.Now(), args))
			mu.Unlock()
		}
	}
	dial := func(context.Context, string, string) (net.Conn, error) {
		client, end := net.Pipe()
		go serve(end)
		return client, nil
	}
	client, err := redis.New(redis.Options{Main: redis.Server{URL: "global:6379"}, Timeout: 5 * time.Second, Dial: dial})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return redis.Ledger{Limiter: client}
}

// callFrom sends the calls of one replica.
func (w *scaleWorld) callFrom(l *region.Limiter, regionIndex int, lim *limit.Limit) {
	due, key, share := 0.0, 0, lim.RegionShare(scaleSettings)
	for start := time.Now(); time.Since(start) < 2*scaleDuration; time.Sleep(callPause) {
		now, part := time.Now(), demandParts[regionIndex]
		if time.Since(start) >= scaleDuration && regionIndex < 2 {
			part = demandParts[1-regionIndex]
		}
		due += part * scaleRegions * replicaCalls * callPause.Seconds()
		var calls int64
		var admitted [scaleKeys]int64
		for ; due >= 1; due-- {
			key = (key + 1) % scaleKeys
			results := make([]backend.Result, 1)
			l.Take(context.Background(), now, []backend.Hit{{Key: []byte{byte(key)}, Limit: lim, N: 1}}, results)
			if calls++; results[0].Allowed {
				admitted[key]++
			}
		}
		windowStart, _ := share.Purchases.WindowAt(now.UnixMicro())
		w.record(time.Since(start).Truncate(sampleTime), windowStart, regionIndex, calls, &admitted)
	}
}

func (w *scaleWorld) record(elapsed time.Duration, windowStart int64, regionIndex int, calls int64, admitted *[scaleKeys]int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls += calls
	sample := w.samples[elapsed]
	if sample == nil {
		sample = new([scaleRegions]sampling)
		w.samples[elapsed] = sample
	}
	sample[regionIndex].calls += calls
	for key, n := range admitted {
		sample[regionIndex].admitted += n
		w.windowOf(windowStart, regionIndex, byte(key)).admitted += n
	}
}

// admittedShare returns the share of the calls of a region that were admitted in some samples.
func (w *scaleWorld) admittedShare(regionIndex int, first, last time.Duration) float64 {
	var sum sampling
	for at := first; at < last; at += sampleTime {
		s := w.samples[at][regionIndex]
		sum.calls, sum.admitted = sum.calls+s.calls, sum.admitted+s.admitted
	}
	return float64(sum.admitted) / math.Max(float64(sum.calls), 1)
}

// moveTime returns the time after which the second region has 0.95 of what it has at the end, once it has the demand of the first.
func (w *scaleWorld) moveTime() time.Duration {
	const windowTime = time.Second / 4
	final := w.admittedShare(1, 2*scaleDuration-2*time.Second, 2*scaleDuration)
	at := scaleDuration
	for at < 2*scaleDuration-windowTime && w.admittedShare(1, at, at+windowTime) < 0.95*final {
		at += sampleTime
	}
	return at - scaleDuration
}

// TestManyReplicasOfRegionsShareLimits has one test for all limits, because go-redis shares timers between clients.
// docs/lab/regions.md has its table for 100 replicas of each region.
func TestManyReplicasOfRegionsShareLimits(t *testing.T) {
	keyDemand := float64(scaleRegions * *regionReplicas * replicaCalls / scaleKeys) // calls a second for a key
	table := new(strings.Builder)
	synctest.Test(t, func(t *testing.T) {
		ledger := newScaleLedger(t)
		for _, c := range []struct {
			algorithm limit.Algorithm
			unit      limit.Unit
			seconds   float64 // in a unit
			perDemand float64 // the limit as a part of the demand
		}{
			{limit.FixedWindow, limit.Minute, 60, 1.25},
			{limit.FixedWindow, limit.Second, 1, 1.25},
			{limit.FixedWindow, limit.Second, 1, 0.8},
			{limit.TokenBucket, limit.Second, 1, 1.25},
			{limit.TokenBucket, limit.Second, 1, 0.8},
		} {
			lim, err := limit.New(limit.Spec{
				Algorithm: c.algorithm, Unit: c.unit, Scope: limit.Global, ChargeDenied: c.algorithm.DefaultChargeDenied(),
				Requests: uint32(keyDemand * c.perDemand * c.seconds),
			})
			require.NoError(t, err)
			w := &scaleWorld{testing: t, windows: map[windowID]*windowHits{}, samples: map[time.Duration]*[scaleRegions]sampling{}}
			w.run(ledger, lim)
			var admitted, unused int64
			admittedInAllRegions := map[windowID]int64{}
			for id, hits := range w.windows {
				admitted += hits.admitted
				unused += max(hits.bought-max(hits.admitted-lim.RegionShare(scaleSettings).Floor, 0), 0)
				admittedInAllRegions[windowID{start: id.start, key: id.key}] += hits.admitted
			}
			const duration = 2 * scaleDuration
			if c.algorithm == limit.TokenBucket {
				assert.LessOrEqual(t, admitted, scaleKeys*(lim.Capacity()+lim.RefilledTokens(duration.Microseconds())))
			} else {
				for id, n := range admittedInAllRegions {
					assert.LessOrEqual(t, n, lim.Max(), id)
				}
			}
			possible := min(w.calls, int64(scaleKeys*keyDemand*c.perDemand*duration.Seconds()))
			share, calls := float64(admitted)/float64(possible), float64(w.calls)
			fmt.Fprintf(table, "| `%s`, %.2f × the demand in a %s | %.1f %% | %.1f %% | %.1f %% | %.2f | %.2f s |\n", c.algorithm, c.perDemand, c.unit,
				100*share, 100*w.admittedShare(scaleRegions-1, scaleDuration+2*time.Second, duration), 100*float64(unused)/float64(possible), 1000*float64(w.orders)/calls, w.moveTime().Seconds())
			assert.Greater(t, share, 0.9)
			assert.Less(t, w.moveTime(), 2*time.Second)
		}
		t.Logf("%d regions with %d replicas each: %.0f calls/s\n| limit of a key | admitted of the possible | of the calls in the farthest region | bought and not used | orders in 1,000 calls | demand moved in |\n|---|---|---|---|---|---|\n%s", scaleRegions, *regionReplicas, keyDemand*scaleKeys, table)
	})
}

func (w *scaleWorld) run(ledger backend.Ledger, lim *limit.Limit) {
	ctx, stop := context.WithCancel(context.Background())
	var replicas, callers sync.WaitGroup
	for i := range scaleRegions {
		counters := &regionCounters{states: map[string]*limit.State{}}
		for range *regionReplicas {
			l := region.New(region.Options{
				Next: counters, Counters: counters,
				ServerTime: func(_ context.Context, _ *backend.Hit, now time.Time) (time.Time, bool) { return now, true },
				Ledger:     farLedger{ledger, w, i},
				Regions:    scaleSettings, Region: fmt.Sprint("r", i), OnTrip: func(error) {},
			})
			replicas.Go(func() { l.Run(ctx) })
			callers.Go(func() { w.callFrom(l, i, lim) })
		}
	}
	callers.Wait()
	stop()
	replicas.Wait()
}

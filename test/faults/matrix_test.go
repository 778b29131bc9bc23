package faults

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/fallback"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

var isFullRun = flag.Bool("full", false, "run all faults at full length and check the promised times")

func TestMain(m *testing.M) {
	useDNSAddress()
	redis.LogTo(slog.New(slog.DiscardHandler))
	zerolog.SetGlobalLevel(zerolog.Disabled) // silences toxiproxy
	goleak.VerifyTestMain(m, append(redistest.IgnoreShared(),
		goleak.Cleanup(func(code int) {
			_ = os.RemoveAll(programDir())
			os.Exit(code)
		}),
		// A toxic of toxiproxy can wait forever to write to a client that has left.
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run"))...)
}

// The promises of docs/failure.md.
const (
	budget        = 50 * time.Millisecond // the default of REDIS_TIMEOUT
	overhead      = 20 * time.Millisecond // of the p99, beyond the budget
	recoverWithin = 2 * time.Second       // until Redis decides all hits again
)

// leniency multiplies the promised times unless -full is given. The race detector and
// other programs slow the machine then.
const leniency = 10

// scenario is the Redis servers of a fault, and how they break and recover.
type scenario struct {
	redis redis.Server

	// fault starts the fault, and duration passes. Then heal returns once Redis could
	// decide again. If heal is nil, the fault is permanent.
	fault    func()
	duration time.Duration
	heal     func()

	losesCounts bool // Redis loses counters or the latest charges
	fromStart   bool // the fault starts before the first call
	callers     int  // default 32
	pause       time.Duration
}

func TestFaultsKeepPromises(t *testing.T) {
	if *isFullRun {
		fmt.Println(header)
	}
	for _, f := range faults {
		if *isFullRun || !f.fullOnly {
			t.Run(f.name, func(t *testing.T) { run(t, f.name, f.start(t)) })
		}
	}
}

const header = "| fault | calls | failed | p99 of its first second | p99 | slowest | machine | decided here | admitted of a limit of 300 | bound | on Redis again after | down, up |\n|---|---|---|---|---|---|---|---|---|---|---|---|"

// outageCounter is a fallback.Observer that counts the changes to down and to up.
type outageCounter struct{ downs, ups atomic.Int32 }

func (c *outageCounter) StateChanged(change fallback.StateChange) {
	if change.Down {
		c.downs.Add(1)
	} else {
		c.ups.Add(1)
	}
}

func (*outageCounter) BreakerChanged(fallback.BreakerChange) {}
func (*outageCounter) BlipEnded(fallback.Outage)             {}
func (*outageCounter) HitsServed(int)                        {}
func (*outageCounter) HitsReplayed(int64)                    {}

func run(t *testing.T, name string, scenario scenario) {
	if scenario.fromStart {
		scenario.fault()
	}
	if scenario.callers == 0 {
		scenario.callers, scenario.pause = 32, 4*time.Millisecond
	}
	redisLimiter, err := redis.New(redis.Options{Main: scenario.redis, Timeout: budget})
	require.NoError(t, err)
	defer redisLimiter.Close()
	var outages outageCounter
	localLimiter := local.New(local.Options{})
	limiter := fallback.New(fallback.Options{ // as in cmd/rls
		Primary: redisLimiter, Secondary: localLimiter, Ratio: ratio,
		Shards: redisLimiter.Shards(), ShardOf: redisLimiter.ShardOf, Probe: redisLimiter.Probe,
		Observer: &outages,
	})
	defer limiter.Close()

	load := startLoad(backend.Scopes{Shared: limiter, Instance: backend.Counters{Limiter: localLimiter}}, scenario.callers, scenario.pause)
	time.Sleep(time.Second)
	usageBefore := measureUsage()
	var faultStart time.Duration
	if !scenario.fromStart {
		faultStart = load.elapsed()
		scenario.fault()
	}
	time.Sleep(scenario.duration)
	if scenario.heal != nil {
		scenario.heal()
	}
	healTime := load.elapsed()
	waitForRecovery(load, healTime)
	usageAfter := measureUsage()
	load.stop()

	// No call fails, and calls are fast.
	require.Nil(t, load.failure.Load(), "a call failed")
	end := load.elapsed()
	firstSecondP99, _ := latencies(load.samplesBetween(faultStart, faultStart+time.Second))
	p99, slowest := latencies(load.samplesBetween(faultStart, end))
	firstSecondDelay, _ := latencies(selectBetween(load.timerDelays, faultStart, faultStart+time.Second))
	timerDelay, _ := latencies(selectBetween(load.timerDelays, faultStart, end))
	factor := time.Duration(1)
	if !*isFullRun {
		factor = leniency
	}
	assert.LessOrEqual(t, firstSecondP99, factor*(budget+overhead)+firstSecondDelay, "p99 of the first second")
	assert.LessOrEqual(t, p99, factor*(budget+overhead)+timerDelay, "p99")

	// Redis decides again. After a permanent fault only the keys that Redis still has count.
	isPermanent := scenario.heal == nil
	readTimeout, recoveryStart := 20*time.Second, healTime
	if isPermanent { // a read of a lost key waits for the whole timeout
		readTimeout, recoveryStart = 2*time.Second, faultStart
	}
	reader, err := redis.New(redis.Options{Main: scenario.redis, Timeout: readTimeout})
	require.NoError(t, err)
	defer reader.Close()
	recovery := load.recoveryTime(recoveryStart, func(key int, isTight bool) bool {
		if !isPermanent {
			return true
		}
		_, err := readCounter(reader, key, isTight)
		return err == nil
	}) - recoveryStart
	assert.LessOrEqual(t, recovery, factor*recoverWithin, "recovery")
	if !isPermanent {
		polltest.Until(t, 20*time.Second, func() bool { return outages.downs.Load() == outages.ups.Load() }, "an up for each down")
	}

	// No tight key admits more than the bound. Redis neither charges twice nor forgets.
	bound := int64(tightMax + localShare)
	if scenario.losesCounts {
		bound += tightMax
	}
	maxAdmitted := int64(0)
	for key := range keys {
		maxAdmitted = max(maxAdmitted, load.tightAdmitted[key].Load())
		chargedHits, err := readCounter(reader, key, false)
		if err != nil {
			assert.True(t, isPermanent, "counter: %v", err)
			continue
		}
		byRedis, byLocal := load.roomyByRedis[key].Load(), load.roomyByLocal[key].Load()
		assert.LessOrEqual(t, chargedHits, byRedis+byLocal, "hits charged twice")
		if !scenario.losesCounts {
			assert.GreaterOrEqual(t, chargedHits, byRedis, "hits forgotten")
		}
	}
	assert.LessOrEqual(t, maxAdmitted, bound, "admitted hits")

	// Nothing leaks.
	if !scenario.fromStart {
		assert.LessOrEqual(t, usageAfter.goroutines, usageBefore.goroutines+64, "goroutines")
		assert.LessOrEqual(t, usageAfter.heap, usageBefore.heap+16<<20, "heap bytes")
	}

	if *isFullRun {
		calls := len(load.samplesBetween(0, end))
		fmt.Printf("| %s | %d | 0 | %s | %s | %s | %s | %.1f %% | %d | %d | %s | %d, %d |\n", name, calls, ms(firstSecondP99), ms(p99), ms(slowest), ms(timerDelay),
			100*load.degradedShare(), maxAdmitted, bound, ms(recovery), outages.downs.Load(), outages.ups.Load())
	}
}

// waitForRecovery lets the load go on until a second passes without degraded hits.
func waitForRecovery(l *load, healTime time.Duration) {
	const quiet = time.Second
	for l.elapsed() < healTime+recoverWithin+quiet || !*isFullRun && l.elapsed() < healTime+leniency*recoverWithin {
		if lastDegraded := time.Duration(l.lastDegraded.Load()); !*isFullRun && l.elapsed() > max(lastDegraded, healTime)+quiet {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// readCounter returns the hits that Redis has counted for a key.
func readCounter(l *redis.Limiter, key int, isTight bool) (int64, error) {
	h := backend.Hit{Key: roomyKey(key), Limit: roomyLimit}
	if isTight {
		h.Key, h.Limit = tightKey(key), tightLimit
	}
	var results [1]backend.Result
	l.Take(context.Background(), time.Now(), []backend.Hit{h}, results[:])
	return h.Limit.Max() - results[0].Remaining, results[0].Err
}

// usage is what the process uses.
type usage struct {
	goroutines int
	heap       uint64 // bytes
}

func measureUsage() usage {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return usage{runtime.NumGoroutine(), m.HeapAlloc}
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

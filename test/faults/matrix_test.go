package faults

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
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
	"github.com/seed-81f232ab/rls/backend/scope"
	"github.com/seed-81f232ab/rls/internal/polltest"
	"github.com/seed-81f232ab/rls/internal/redistest"
)

var full = flag.Bool("full", false, "all rows, at full length, held to the promised times")

func TestMain(m *testing.M) {
	redis.LogTo(slog.New(slog.DiscardHandler))
	zerolog.SetGlobalLevel(zerolog.Disabled) // toxiproxy's
	goleak.VerifyTestMain(m, append(redistest.IgnoreShared(),
		// toxiproxy's: it waits for ever to write to whom has gone.
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*BandwidthToxic).Pipe"))...)
}

// What is promised.
const (
	budget   = 50 * time.Millisecond // REDIS_TIMEOUT by default
	overhead = 20 * time.Millisecond // p99, beyond the budget
	back     = 2 * time.Second       // until all is on Redis again
)

// The short version runs with the race detector on machines with much else to do:
// it holds to what must never happen, and only roughly to times.
const leniency = 10

// subject is the servers of a row, and what is done to them.
type subject struct {
	redis redis.Server

	// fault begins it. It lasts for so long, or until heal returns: then Redis
	// could decide again. Without heal it is for good.
	fault func()
	lasts time.Duration
	heal  func()

	loses     bool // counters, or the latest of their charges
	fromStart bool // the fault is there before the first call
	callers   int  // 32 by default
	pause     time.Duration
}

func TestMatrix(t *testing.T) {
	if *full {
		fmt.Println(header)
	}
	for _, r := range rows {
		if !*full && !r.short {
			continue
		}
		t.Run(r.name, func(t *testing.T) { run(t, r.name, r.start(t)) })
	}
}

const header = "| fault | calls | failed | p99 of its first second | p99 | slowest | machine | decided here | admitted of a limit of 300 | bound | on Redis again after | down, up |\n|---|---|---|---|---|---|---|---|---|---|---|---|"

func run(t *testing.T, name string, s subject) {
	if s.fromStart {
		s.fault()
	}
	if s.callers == 0 {
		s.callers, s.pause = 32, 4*time.Millisecond
	}
	inRedis, err := redis.New(redis.Options{Main: s.redis, Timeout: budget})
	require.NoError(t, err)
	defer inRedis.Close()
	var downs, ups atomic.Int32
	counters := local.New(local.Options{})
	always := fallback.New(fallback.Options{ // as cmd/rls does
		Primary: inRedis, Secondary: counters, Ratio: ratio,
		Parts: inRedis.Parts(), Part: inRedis.Part, Probe: inRedis.Probe,
		OnStateChange: func(c fallback.StateChange) {
			if c.Down {
				downs.Add(1)
			} else {
				ups.Add(1)
			}
		},
	})
	defer always.Close()

	load := startLoad(scope.New(always, counters), s.callers, s.pause)
	time.Sleep(time.Second)
	before := measure()
	broken := load.now()
	if s.fromStart {
		broken = 0
	} else {
		s.fault()
	}
	time.Sleep(s.lasts)
	if s.heal != nil {
		s.heal()
	}
	healed := load.now()
	watch(load, healed)
	after := measure()
	load.stop()

	// Calls are decided, in time.
	require.Nil(t, load.failure.Load(), "a call failed")
	firstSecond, _ := p99(load.between(broken, broken+time.Second))
	ever, slowest := p99(load.between(broken, load.now()))
	lateAtFirst, _ := p99(between(load.machine, broken, broken+time.Second))
	late, _ := p99(between(load.machine, broken, load.now()))
	factor := time.Duration(1)
	if !*full {
		factor = leniency
	}
	assert.LessOrEqual(t, firstSecond, factor*(budget+overhead)+lateAtFirst, "p99 of the first second")
	assert.LessOrEqual(t, ever, factor*(budget+overhead)+late, "p99")

	// They are on Redis again.
	patience := 20 * time.Second
	if s.heal == nil { // who asks for what is lost waits for all of it
		patience = 2 * time.Second
	}
	fresh, err := redis.New(redis.Options{Main: s.redis, Timeout: patience})
	require.NoError(t, err)
	defer fresh.Close()
	from := healed
	if s.heal == nil { // then those that are not lost
		from = broken
	}
	again := load.backAt(from, func(key int, tightHit bool) bool { return s.heal != nil || counter(fresh, key, tightHit) >= 0 }) - from
	assert.LessOrEqual(t, again, factor*back, "on Redis again")
	if s.heal != nil {
		polltest.Until(t, 20*time.Second, func() bool { return !always.Down() && downs.Load() == ups.Load() }, "down and up")
	}

	// Nobody got more than is promised, and nothing is charged twice.
	bound := int64(tightness + share)
	if s.loses {
		bound += tightness
	}
	most := int64(0)
	for key := range keys {
		most = max(most, load.admitted[key].Load())
		charged := counter(fresh, key, false)
		byRedis, byLocal := load.byRedis[key].Load(), load.byLocal[key].Load()
		if s.heal != nil {
			assert.GreaterOrEqual(t, charged, int64(0), "it can be asked")
		}
		assert.LessOrEqual(t, charged, byRedis+byLocal, "charged twice")
		if !s.loses && charged >= 0 {
			assert.GreaterOrEqual(t, charged, byRedis, "forgotten")
		}
	}
	assert.LessOrEqual(t, most, bound, "admitted")

	// Nothing stays behind.
	if !s.fromStart {
		assert.LessOrEqual(t, after.goroutines, before.goroutines+64, "goroutines")
		assert.LessOrEqual(t, after.heap, before.heap+16<<20, "memory")
	}

	all := load.between(0, load.now())
	if *full {
		fmt.Printf("| %s | %d | 0 | %s | %s | %s | %s | %.1f %% | %d | %d | %s | %d, %d |\n", name, len(all), ms(firstSecond), ms(ever), ms(slowest), ms(late),
			100*load.degraded(), most, bound, ms(again), downs.Load(), ups.Load())
	}
}

// watch lets the load go on until nothing was decided here for a while.
func watch(l *load, healed time.Duration) {
	const quiet = time.Second
	for l.now() < healed+back+quiet || !*full && l.now() < healed+leniency*back {
		if last := time.Duration(l.lastDegraded.Load()); !*full && l.now() > max(last, healed)+quiet {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// counter is what a key has spent in Redis, -1 if it can't be asked.
func counter(l *redis.Limiter, key int, tightHit bool) int64 {
	h := backend.Hit{Key: roomyKey(key), Limit: roomy}
	if tightHit {
		h.Key, h.Limit = tightKey(key), tight
	}
	var results [1]backend.Result
	l.Take(context.Background(), time.Now(), []backend.Hit{h}, results[:])
	if results[0].Err != nil {
		return -1
	}
	return h.Limit.Max() - results[0].Remaining
}

// backAt is the start of the first half second after from, to a tenth of a second,
// in which less than 2 of 100 hits on such keys were decided here. (On a busy
// machine a call outlasts the budget now and then.)
func (l *load) backAt(from time.Duration, counts func(key int, tightHit bool) bool) time.Duration {
	const step, window = 100 * time.Millisecond, 5
	var known [keys][2]bool
	for key := range keys {
		known[key] = [2]bool{counts(key, true), counts(key, false)}
	}
	hits, here := make([]int, l.now()/step+1), make([]int, l.now()/step+1)
	for _, caller := range l.samples {
		for _, s := range caller {
			for i := range 2 {
				if s.at >= from && known[s.key][i] {
					hits[s.at/step]++
					if s.degraded[i] {
						here[s.at/step]++
					}
				}
			}
		}
	}
	for i := int(from / step); i+window <= len(hits); i++ {
		all, degraded := 0, 0
		for j := i; j < i+window; j++ {
			all, degraded = all+hits[j], degraded+here[j]
		}
		if degraded*100 < all*2 {
			return max(time.Duration(i)*step, from)
		}
	}
	return l.now()
}

// degraded is the share of hits decided here.
func (l *load) degraded() float64 {
	hits, here := 0, 0
	for _, caller := range l.samples {
		for _, s := range caller {
			for _, d := range s.degraded {
				hits++
				if d {
					here++
				}
			}
		}
	}
	return float64(here) / float64(max(hits, 1))
}

// footprint is what the process holds.
type footprint struct {
	goroutines int
	heap       uint64 // bytes
}

func measure() footprint {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return footprint{runtime.NumGoroutine(), m.HeapAlloc}
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

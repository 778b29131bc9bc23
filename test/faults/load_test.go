package faults

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

const (
	keys       = 24 // of each kind
	tightMax   = 300
	ratio      = 0.5
	localShare = tightMax * ratio // hits of a tight key that the process may admit without Redis
)

// The window is a year, so no window ends during a test.
var (
	tightLimit = must(limit.New(limit.Spec{Requests: tightMax, Unit: limit.Year}))
	roomyLimit = must(limit.New(limit.Spec{Requests: 1 << 31, Unit: limit.Year}))
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func tightKey(i int) []byte { return fmt.Appendf(nil, "tight=%d", i) }
func roomyKey(i int) []byte { return fmt.Appendf(nil, "roomy=%d", i) }

// sample is one call.
type sample struct {
	start    time.Duration // since the load started
	latency  time.Duration
	key      uint8
	degraded [2]bool // of the tight hit and the roomy hit
}

// load is a group of callers. Each call has one hit on a tight key and one hit on a
// roomy key.
type load struct {
	limiter    backend.Limiter
	startTime  time.Time
	stopped    chan struct{}
	goroutines sync.WaitGroup

	// Both may be read after stop.
	samples     [][]sample // by caller
	timerDelays []sample   // latency is how late a timer fired, whatever Redis does

	lastDegraded  atomic.Int64 // nanoseconds since the load started
	failure       atomic.Pointer[error]
	tightAdmitted [keys]atomic.Int64
	roomyByRedis  [keys]atomic.Int64 // hits that Redis admitted
	roomyByLocal  [keys]atomic.Int64 // hits that the process admitted
}

// startLoad starts the callers. Each pauses after a call.
func startLoad(l backend.Limiter, callers int, pause time.Duration) *load {
	load := &load{limiter: l, startTime: time.Now(), stopped: make(chan struct{}), samples: make([][]sample, callers)}
	for i := range callers {
		load.goroutines.Go(func() {
			wait := pause * time.Duration(i) / time.Duration(callers)
			for n := i; ; n++ {
				select {
				case <-load.stopped:
					return
				case <-time.After(wait):
				}
				load.samples[i] = append(load.samples[i], load.call(n%keys))
				wait = pause
			}
		})
	}
	load.goroutines.Go(load.measureTimers)
	return load
}

// measureTimers records how late timers fire on this machine.
func (l *load) measureTimers() {
	const pause = 2 * time.Millisecond
	for {
		fireTime := l.elapsed() + pause
		select {
		case <-l.stopped:
			return
		case <-time.After(pause):
		}
		l.timerDelays = append(l.timerDelays, sample{start: fireTime, latency: l.elapsed() - fireTime})
	}
}

func (l *load) call(key int) sample {
	now := time.Now()
	hits := [2]backend.Hit{{Key: tightKey(key), Limit: tightLimit, N: 1}, {Key: roomyKey(key), Limit: roomyLimit, N: 1}}
	var results [2]backend.Result
	l.limiter.Take(context.Background(), now, hits[:], results[:])
	s := sample{start: now.Sub(l.startTime), latency: time.Since(now), key: uint8(key)}
	for i, r := range results {
		s.degraded[i] = r.IsDegraded()
		if r.Err != nil {
			l.failure.CompareAndSwap(nil, &r.Err)
		}
	}
	if s.degraded[0] || s.degraded[1] {
		l.lastDegraded.Store(int64(s.start))
	}
	if results[0].Allowed {
		l.tightAdmitted[key].Add(1)
	}
	switch {
	case !results[1].Allowed:
	case s.degraded[1]:
		l.roomyByLocal[key].Add(1)
	default:
		l.roomyByRedis[key].Add(1)
	}
	return s
}

func (l *load) stop() {
	close(l.stopped)
	l.goroutines.Wait()
}

func (l *load) elapsed() time.Duration { return time.Since(l.startTime) }

// samplesBetween returns the calls that started at or after from and before to.
func (l *load) samplesBetween(from, to time.Duration) (selected []sample) {
	for _, caller := range l.samples {
		selected = append(selected, selectBetween(caller, from, to)...)
	}
	return selected
}

func selectBetween(samples []sample, from, to time.Duration) (selected []sample) {
	for _, s := range samples {
		if s.start >= from && s.start < to {
			selected = append(selected, s)
		}
	}
	return selected
}

// latencies returns the 99th percentile and the maximum of the latencies.
func latencies(samples []sample) (p99, slowest time.Duration) {
	if len(samples) == 0 {
		return 0, 0
	}
	durations := make([]time.Duration, len(samples))
	for i, s := range samples {
		durations[i] = s.latency
	}
	slices.Sort(durations)
	return durations[(len(durations)*99+99)/100-1], durations[len(durations)-1]
}

// degradedShare returns the share of hits that the process decided without Redis.
func (l *load) degradedShare() float64 {
	hits, degradedHits := 0, 0
	for _, caller := range l.samples {
		for _, s := range caller {
			for _, d := range s.degraded {
				hits++
				if d {
					degradedHits++
				}
			}
		}
	}
	return float64(degradedHits) / float64(max(hits, 1))
}

// recoveryTime returns the first time at or after from, in steps of a tenth of a
// second, that starts half a second with less than 2 % degraded hits. Only hits on
// keys that include accepts count. A few degraded hits are normal, because on a busy
// machine a call exceeds the budget now and then.
func (l *load) recoveryTime(from time.Duration, include func(key int, isTight bool) bool) time.Duration {
	const step, window = 100 * time.Millisecond, 5
	var isIncluded [keys][2]bool
	for key := range keys {
		isIncluded[key] = [2]bool{include(key, true), include(key, false)}
	}
	steps := l.elapsed()/step + 1
	hitsByStep, degradedByStep := make([]int, steps), make([]int, steps)
	for _, caller := range l.samples {
		for _, s := range caller {
			for i := range 2 {
				if s.start < from || !isIncluded[s.key][i] {
					continue
				}
				hitsByStep[s.start/step]++
				if s.degraded[i] {
					degradedByStep[s.start/step]++
				}
			}
		}
	}
	for i := int(from / step); i+window <= len(hitsByStep); i++ {
		hits, degradedHits := 0, 0
		for j := i; j < i+window; j++ {
			hits, degradedHits = hits+hitsByStep[j], degradedHits+degradedByStep[j]
		}
		if degradedHits*100 < hits*2 {
			return max(time.Duration(i)*step, from)
		}
	}
	return l.elapsed()
}

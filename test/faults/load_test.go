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

// What the callers ask for. The window is a year, so that none ends meanwhile.
const (
	keys      = 24 // of each kind
	tightness = 300
	ratio     = 0.5
	share     = tightness * ratio
)

var (
	tight = must(limit.New(limit.Spec{Requests: tightness, Unit: limit.Year}))
	roomy = must(limit.New(limit.Spec{Requests: 1 << 31, Unit: limit.Year}))
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
	at       time.Duration // since the load began
	took     time.Duration
	key      uint8
	degraded [2]bool // of its hits: tight, roomy
}

// load is callers that ask again and again, each for one hit on a tight and one on
// a roomy key.
type load struct {
	limiter backend.Limiter
	began   time.Time
	stopped chan struct{}
	running sync.WaitGroup
	samples [][]sample // by caller; to be read once stopped
	machine []sample   // how late timers are, whatever Redis does; likewise

	lastDegraded atomic.Int64 // since it began
	failure      atomic.Pointer[error]
	admitted     [keys]atomic.Int64 // on tight keys
	byRedis      [keys]atomic.Int64 // on roomy keys
	byLocal      [keys]atomic.Int64
}

// startLoad lets callers go, each with a pause after a call.
func startLoad(l backend.Limiter, callers int, pause time.Duration) *load {
	load := &load{limiter: l, began: time.Now(), stopped: make(chan struct{}), samples: make([][]sample, callers)}
	for i := range callers {
		load.running.Go(func() {
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
	load.running.Go(load.watchMachine)
	return load
}

// watchMachine measures how late the machine is with timers.
func (l *load) watchMachine() {
	const pause = 2 * time.Millisecond
	for {
		due := l.now() + pause
		select {
		case <-l.stopped:
			return
		case <-time.After(pause):
		}
		l.machine = append(l.machine, sample{at: due, took: l.now() - due})
	}
}

func (l *load) call(key int) sample {
	now := time.Now()
	hits := [2]backend.Hit{{Key: tightKey(key), Limit: tight, N: 1}, {Key: roomyKey(key), Limit: roomy, N: 1}}
	var results [2]backend.Result
	l.limiter.Take(context.Background(), now, hits[:], results[:])
	s := sample{at: now.Sub(l.began), took: time.Since(now), key: uint8(key)}
	for i, r := range results {
		s.degraded[i] = r.Degraded()
		if r.Err != nil {
			l.failure.CompareAndSwap(nil, &r.Err)
		}
	}
	if s.degraded[0] || s.degraded[1] {
		l.lastDegraded.Store(int64(s.at))
	}
	if results[0].Allowed {
		l.admitted[key].Add(1)
	}
	switch {
	case !results[1].Allowed:
	case s.degraded[1]:
		l.byLocal[key].Add(1)
	default:
		l.byRedis[key].Add(1)
	}
	return s
}

func (l *load) stop() {
	close(l.stopped)
	l.running.Wait()
}

func (l *load) now() time.Duration { return time.Since(l.began) }

// between are the calls that began from one time until another.
func (l *load) between(from, to time.Duration) (some []sample) {
	for _, caller := range l.samples {
		some = append(some, between(caller, from, to)...)
	}
	return some
}

func between(samples []sample, from, to time.Duration) (some []sample) {
	for _, s := range samples {
		if s.at >= from && s.at < to {
			some = append(some, s)
		}
	}
	return some
}

// p99 and slowest are of how long the calls took.
func p99(samples []sample) (p99, slowest time.Duration) {
	if len(samples) == 0 {
		return 0, 0
	}
	took := make([]time.Duration, len(samples))
	for i, s := range samples {
		took[i] = s.took
	}
	slices.Sort(took)
	return took[(len(took)*99+99)/100-1], took[len(took)-1]
}

package fallback

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/wait"
)

// breaker stops the calls to one shard of the primary. The breakers of libraries lock on
// every call and use a caller's call as the probe, so this one is our own.
type breaker struct {
	limiter *Limiter
	shard   int
	log     *replayLog

	state atomic.Int32 // written under mu only

	mu           sync.Mutex    // guards the fields below
	failures     int           // failures without a success in between
	failingSince time.Time     // first of the failures
	servedBefore int64         // value of limiter.served at failingSince
	closedAt     time.Time     // end of the last outage
	lastPause    time.Duration // last pause between probes in that outage
}

// The states of a breaker.
const (
	closed  int32 = iota // hits go to the primary
	failing              // hits go to the primary, which has failed since its last success
	open                 // hits bypass the primary until a probe succeeds
)

// minFailures is the number of failures that a breaker needs to open. OpenAfter must have
// passed as well.
const minFailures = 3

func (b *breaker) isOpen() bool { return b.state.Load() == open }

func (b *breaker) recordSuccess() {
	if b.state.Load() != failing {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state.Load() == failing {
		b.setState(closed)
	}
}

func (b *breaker) recordFailure(err error) {
	if b.isOpen() {
		return
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.state.Load() {
	case closed:
		b.failures, b.failingSince, b.servedBefore = 1, now, b.limiter.served.Load()
		b.setState(failing)
	case failing:
		b.failures++
		if b.failures >= minFailures && now.Sub(b.failingSince) >= b.limiter.o.OpenAfter {
			b.setState(open)
			b.limiter.beginOutage(b, err)
		}
	}
}

// setState changes the state and counts the breakers that aren't closed. The caller
// holds b.mu.
func (b *breaker) setState(next int32) {
	switch previous := b.state.Swap(next); {
	case previous == closed:
		b.limiter.notClosed.Add(1)
	case next == closed:
		b.limiter.notClosed.Add(-1)
	}
}

// beginOutage starts the probes of b. The caller holds b.mu.
func (l *Limiter) beginOutage(b *breaker, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shardsDown++
	if l.stopped {
		return
	}
	pause := l.o.ProbeInterval
	if time.Since(b.closedAt) < l.o.MaxProbeInterval { // the shard flaps, so the pauses keep growing
		pause = min(2*b.lastPause, l.o.MaxProbeInterval)
	}
	l.probes.Go(func() { b.awaitRecovery(l.ctx, pause) })
	if l.shardsDown == 1 {
		l.downFrom, l.servedBefore, l.replayed = b.failingSince, b.servedBefore, 0
		l.o.Observer.StateChanged(StateChange{Down: true, Err: err})
	}
}

// awaitRecovery probes the shard until it works. Then it closes b, replays the log and ends
// the outage.
func (b *breaker) awaitRecovery(ctx context.Context, pause time.Duration) {
	l := b.limiter
	for {
		if !wait.For(ctx, withJitter(pause)) {
			return
		}
		if l.o.Probe(ctx, b.shard) == nil && ctx.Err() == nil {
			break
		}
		pause = min(2*pause, l.o.MaxProbeInterval)
	}
	closedAt := time.Now()
	b.mu.Lock()
	b.closedAt, b.lastPause = closedAt, pause
	b.setState(closed)
	b.mu.Unlock()

	replayed := b.replay(ctx)
	if wait.For(ctx, l.o.MaxProbeInterval) {
		replayed += b.replay(ctx) // hits of calls that saw the breaker open
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	l.shardsDown--
	l.replayed += replayed
	if l.shardsDown == 0 && ctx.Err() == nil {
		l.o.Observer.StateChanged(StateChange{Duration: closedAt.Sub(l.downFrom), Served: l.served.Load() - l.servedBefore, Replayed: l.replayed})
	}
}

// withJitter returns d plus or minus up to 20 %, so that replicas don't probe together.
func withJitter(d time.Duration) time.Duration {
	return d + time.Duration((rand.Float64()*0.4-0.2)*float64(d))
}

// probeByHit is the default of Options.Probe.
func (o *Options) probeByHit(ctx context.Context, _ int) error {
	hits := []backend.Hit{backend.Probe(Namespace + "probe")}
	results := make([]backend.Result, 1)
	o.Primary.Take(ctx, time.Now(), hits, results)
	return results[0].Err
}

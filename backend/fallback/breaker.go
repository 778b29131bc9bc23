package fallback

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/internal/wait"
)

// breaker stops the calls to one shard of the primary. The breakers of libraries lock on
// every call and use a caller's call as the probe, so the fallback has its own breaker.
type breaker struct {
	limiter *Limiter
	shard   int
	log     *replayLog

	state atomic.Int32 // written under mu only

	mu           sync.Mutex // guards the fields below
	failures     int        // failures without a success in between
	failingSince time.Time  // first of the failures
	servedBefore int64      // value of limiter.servedHits at failingSince
	inOutage     bool       // awaitRecovery runs
}

// The states of a breaker.
const (
	closed  int32 = iota // hits go to the primary
	failing              // hits go to the primary, which has failed since its last success
	open                 // hits bypass the primary until a probe succeeds
)

// A breaker opens after minFailures without a success, if they have lasted for openAfter.
const (
	minFailures = 3
	openAfter   = 50 * time.Millisecond
)

// Each pause between probes is twice as long as the pause before, up to maxProbePause. An
// outage ends once the breaker has been closed for maxProbePause.
const (
	firstProbePause = 50 * time.Millisecond
	maxProbePause   = 500 * time.Millisecond
)

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
		b.failures, b.failingSince, b.servedBefore = 1, now, b.limiter.servedHits.Load()
		b.setState(failing)
	case failing:
		b.failures++
		if b.failures >= minFailures && now.Sub(b.failingSince) >= openAfter {
			b.setState(open)
			b.beginOutage(err)
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

// beginOutage starts the probes of b, unless an outage is in progress. The caller holds
// b.mu.
func (b *breaker) beginOutage(err error) {
	if b.inOutage {
		return
	}
	l := b.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return
	}
	b.inOutage = true
	l.probes.Go(b.awaitRecovery)
	l.shardsDown++
	if l.shardsDown == 1 {
		l.downSince, l.servedBefore = b.failingSince, b.servedBefore
		l.o.Observer.StateChanged(StateChange{Down: true, Err: err})
	}
}

// awaitRecovery probes the shard. Once a probe succeeds, it closes b and replays the log. It
// ends the outage if b then stays closed, and goes on otherwise.
func (b *breaker) awaitRecovery() {
	l := b.limiter
	for pause := firstProbePause; ; pause = min(2*pause, maxProbePause) {
		if !wait.Sleep(l.ctx, withJitter(pause)) {
			return
		}
		if l.o.Probe(l.ctx, b.shard) != nil || l.ctx.Err() != nil {
			continue
		}
		closedAt := time.Now()
		b.mu.Lock()
		b.setState(closed)
		b.mu.Unlock()
		b.replay()
		if !wait.Sleep(l.ctx, maxProbePause) {
			return
		}
		b.replay() // hits of calls that saw the breaker open
		if b.endOutage(closedAt) {
			return
		}
	}
}

// endOutage ends the outage of b, unless b is open again. It reports whether the outage
// ended.
func (b *breaker) endOutage(closedAt time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isOpen() {
		return false
	}
	b.inOutage = false
	l := b.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shardsDown--
	if l.shardsDown == 0 {
		l.o.Observer.StateChanged(StateChange{Duration: closedAt.Sub(l.downSince), Served: l.servedHits.Load() - l.servedBefore, Replayed: l.replayedHits.Swap(0)})
	}
	return true
}

// withJitter returns d plus or minus up to 20 %, so that replicas don't probe together.
func withJitter(d time.Duration) time.Duration {
	return d + time.Duration((rand.Float64()*0.4-0.2)*float64(d))
}

package fallback

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/base/wait"
)

// breaker stops the Takes of one shard of the primary. This package has its own breaker, because the breakers of
// libraries lock a mutex in each call, and use the call of a caller as the probe.
type breaker struct {
	limiter *Limiter
	shard   int
	log     *replayLog

	state       atomic.Int32 // a BreakerState; changed under mu only
	isReplaying atomic.Bool  // replayUntilEmpty is running

	mu           sync.Mutex                        // guards the fields below
	failureCount int                               // the number of failures without a success or a gap of more than maxFailureGap
	firstFailure time.Time                         // the time of the first counted failure
	lastFailure  time.Time                         // the time of the last failure
	isInOutage   bool                              // awaitRecovery is running
	stateStart   time.Time                         // the time of the last change of the state
	timeByState  [len(breakerStates)]time.Duration // the time spent in each state, until stateStart
}

// BreakerState is the state of a breaker.
type BreakerState int32

// The states of a breaker.
const (
	Closed  BreakerState = iota // hits go to the primary
	Failing                     // hits go to the primary, but the last hits failed
	Open                        // hits bypass the primary until a probe succeeds
)

var breakerStates = [...]string{Closed: "closed", Failing: "failing", Open: "open"}

// String returns the name used in metrics and logs.
func (s BreakerState) String() string { return breakerStates[s] }

// BreakerStates lists all states.
var BreakerStates = [...]BreakerState{Closed, Failing, Open}

// A breaker opens after minFailures failures without a success, if the first failure was at least minFailingTime ago.
const (
	minFailures    = 3
	minFailingTime = 50 * time.Millisecond
)

// maxFailureGap is the longest time from a failure to the start of the next failed Take of the same count. After a longer
// time, the count begins again at 1. So two separate faults do not open the breaker together.
const maxFailureGap = time.Second

const (
	firstProbePause   = 50 * time.Millisecond  // the first pause between two probes; each further pause is twice as long
	maxProbePause     = 500 * time.Millisecond // the longest pause; an outage ends when the breaker has been closed for this time
	minIdleProbePause = 50 * time.Millisecond  // the least pause of probeIdleShards
)

func (b *breaker) loadState() BreakerState { return BreakerState(b.state.Load()) }

func (b *breaker) isOpen() bool { return b.loadState() == Open }

func (b *breaker) recordSuccess() {
	if b.loadState() != Failing {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.loadState() == Failing {
		b.setState(Closed, nil)
	}
}

// recordFailure records that a Take or a probe of the primary has failed with err. start is the time at which it began.
func (b *breaker) recordFailure(start time.Time, err error) {
	if b.isOpen() {
		return
	}
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	state := b.loadState()
	if state == Closed || start.Sub(b.lastFailure) > maxFailureGap {
		b.failureCount, b.firstFailure = 0, now
	}
	b.failureCount++
	b.lastFailure = now
	switch {
	case state == Closed:
		b.setState(Failing, err)
	case state == Failing && b.failureCount >= minFailures && now.Sub(b.firstFailure) >= minFailingTime:
		b.setState(Open, err)
		b.beginOutage(err)
	}
}

// setState changes the state. If the breaker opens or closes, setState tells the Observer. err is the failure that causes
// the change, or nil. The caller holds b.mu.
func (b *breaker) setState(newState BreakerState, err error) {
	now := time.Now()
	oldState := BreakerState(b.state.Swap(int32(newState)))
	stateDuration := now.Sub(b.stateStart)
	b.timeByState[oldState] += stateDuration
	b.stateStart = now
	switch {
	case oldState == Closed:
		b.limiter.unclosedBreakers.Add(1)
	case newState == Closed:
		b.limiter.unclosedBreakers.Add(-1)
	}
	switch {
	case newState == Open:
		b.limiter.options.Observer.BreakerChanged(BreakerChange{Shard: b.shard, Open: true, Err: err})
	case oldState == Open:
		b.limiter.options.Observer.BreakerChanged(BreakerChange{Shard: b.shard, OpenTime: stateDuration})
	}
}

func (b *breaker) status() BreakerStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := BreakerStatus{State: b.loadState(), StateStart: b.stateStart, TimeByState: b.timeByState}
	s.TimeByState[s.State] += time.Since(s.StateStart)
	return s
}

// beginOutage starts the outage of b and its probes, unless the outage is in progress. The caller holds b.mu.
func (b *breaker) beginOutage(err error) {
	if b.isInOutage {
		return
	}
	l := b.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return
	}
	b.isInOutage = true
	l.workers.Go(b.awaitRecovery)
	l.downShardCount++
	if l.downShardCount == 1 {
		l.outageError = err
		l.options.Observer.StateChanged(StateChange{Down: true, Outage: Outage{Start: l.currentCountsLocked().start, Err: err}})
	}
}

// awaitRecovery probes the shard until a probe succeeds. It then closes b and replays the log. If b stays closed for
// maxProbePause, awaitRecovery ends the outage. Otherwise it probes again.
func (b *breaker) awaitRecovery() {
	l, keepsCounters := b.limiter, true
	for pause := firstProbePause; ; pause = min(2*pause, maxProbePause) {
		if !wait.Sleep(l.ctx, withJitter(pause)) {
			return
		}
		if err := l.options.Probe(l.ctx, b.shard); err != nil || l.ctx.Err() != nil {
			l.recordProbeError(err)
			continue
		}
		closedAt := time.Now()
		keepsCounters = keepsCounters && l.options.KeepsCounters(b.shard)
		if !keepsCounters {
			l.currentCounts().mayHaveLostCounters.Store(true)
		}
		b.mu.Lock()
		b.setState(Closed, nil)
		b.mu.Unlock()
		b.replay(keepsCounters)
		if !wait.Sleep(l.ctx, maxProbePause) {
			return
		}
		b.replay(keepsCounters) // charges the hits of Takes that began before the breaker closed
		if b.endOutage(closedAt) {
			return
		}
	}
}

// endOutage ends the outage of b, and returns true. If b is open again, it returns false. closedAt is the time at which b
// closed.
func (b *breaker) endOutage(closedAt time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isOpen() {
		return false
	}
	b.isInOutage = false
	l := b.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	l.downShardCount--
	if l.downShardCount == 0 {
		c := l.currentCountsLocked()
		l.lastOutage = c.price()
		l.lastOutage.CountersKept = !c.mayHaveLostCounters.Load()
		l.lastOutage.End, l.lastOutage.Err = closedAt, l.outageError
		l.counts.Store(nil)
		l.options.Observer.StateChanged(StateChange{Outage: l.lastOutage})
	}
	return true
}

// recordProbeError remembers the failure of a probe during an outage, because the cause of the outage can change.
func (l *Limiter) recordProbeError(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() == nil && backend.ReasonOf(err) != backend.ReasonOverload {
		l.outageError = err
	}
}

// probeIdleShards probes one shard after the other. The pause between two probes of a shard is Options.IdleProbePause. In
// the first round, the pauses are minIdleProbePause, so that the fallback soon finds a fault at the start.
func (l *Limiter) probeIdleShards() {
	for pause := minIdleProbePause; ; pause = max(l.options.IdleProbePause/time.Duration(len(l.breakers)), minIdleProbePause) {
		for _, b := range l.breakers {
			if !wait.Sleep(l.ctx, withJitter(pause)) {
				return
			}
			b.probeRepeatedly()
		}
	}
}

// probeRepeatedly probes the shard until a probe succeeds, or until failed probes have opened the breaker.
func (b *breaker) probeRepeatedly() {
	for l := b.limiter; !b.isOpen(); {
		start := time.Now()
		err := l.options.Probe(l.ctx, b.shard)
		switch {
		case l.ctx.Err() != nil || backend.ReasonOf(err) == backend.ReasonOverload:
			return
		case err == nil:
			b.recordSuccess()
			return
		}
		b.recordFailure(start, err)
		if !wait.Sleep(l.ctx, withJitter(minFailingTime/2)) {
			return
		}
	}
}

// withJitter returns pause plus or minus up to 20 %, so that replicas don't probe together.
func withJitter(pause time.Duration) time.Duration {
	return pause + time.Duration((rand.Float64()*0.4-0.2)*float64(pause))
}

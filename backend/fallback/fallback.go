// Package fallback decides hits in this process while the shared counters can't be reached, as docs/failure.md says.
//
//   - primary: the Limiter with the counters that all replicas share, such as those in Redis;
//   - secondary: the Limiter with counters in this process, which grants a share of each limit.
//
// Each shard of the primary has a breaker. The breaker stops the Takes of a shard that keeps failing, and closes once the
// shard answers a probe.
package fallback

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// Namespace is the prefix of the fallback's keys in the secondary. The secondary has other keys too.
const Namespace = "redis_fallback:"

// Options configure a Limiter. Mode, IdleProbePause, KeepsCounters and LastCount are optional.
type Options struct {
	// Primary has the shared counters. It bounds the time of its Takes. If an answer can still come after the end of
	// a Take, the error is a backend.LateError.
	Primary   backend.Limiter
	Secondary Secondary

	Ratio float64           // the ratio of limits that state no ratio: above 0 and at most 1
	Mode  limit.FailureMode // the failure mode of limits that state no mode; default FailLocal

	Shards  int                    // the number of shards of the primary
	ShardOf func(*backend.Hit) int // the shard of a hit, from 0 to Shards-1

	// Probe returns nil if a shard of the primary works. It must charge a counter, because a shard can answer reads
	// and refuse writes.
	Probe func(ctx context.Context, shard int) error

	// IdleProbePause is the pause between two probes of a shard with a closed breaker. These probes find an outage while
	// no hits come. 0 means that only shards with an open breaker are probed.
	IdleProbePause time.Duration

	// KeepsCounters is called after a successful Probe. It reports whether the shard has certainly kept its counters
	// since the previous successful Probe. In this case, the answers to the replay lower the price of the outage.
	KeepsCounters func(shard int) bool

	// LastCount returns and forgets the spent hits in the last answer of the primary about the counter of a hit.
	// startTime is the time of the answer, or the start of the window if the algorithm has ResetsAtWindowEnd. If there is
	// no such answer, ok is false.
	LastCount func(now time.Time, h *backend.Hit) (spent int64, startTime time.Time, ok bool)

	Observer Observer
}

// Observer receives the events of a Limiter. Its methods must return at once, and not use the Limiter.
type Observer interface {
	// StateChanged is called when the primary goes down or comes up again. Calls alternate and never overlap.
	StateChanged(StateChange)

	// BreakerChanged is called when a breaker opens or closes. Calls for one shard never overlap.
	BreakerChanged(BreakerChange)

	// BlipEnded is called after a blip, at most once in ten seconds.
	BlipEnded(Outage)

	// HitsServed is called with the number of hits that one Take has decided without the primary.
	HitsServed(hits int)

	// HitsReplayed is called with the number of hits that the primary was charged with after an outage or a blip.
	HitsReplayed(hits int64)
}

// StateChange reports that the primary went down or came up again. The primary is down from the first open breaker
// until all breakers have been closed for half a second.
type StateChange struct {
	Down   bool
	Outage Outage // the outage that begins, with Start and Err only; or the outage that has ended, if Down is false
}

// BreakerChange reports that a breaker opened or closed.
type BreakerChange struct {
	Shard    int
	Open     bool
	Err      error         // the failure that opened the breaker, or nil if it closes
	OpenTime time.Duration // the time that the breaker was open, if it closes
}

// Limiter is a backend.Layer that decides even if its primary fails. It returns an error only if the secondary would fail
// too, for example after the caller has canceled the call.
type Limiter struct {
	options          Options
	breakers         []*breaker   // the breaker of each shard
	unclosedBreakers atomic.Int32 // breakers that are failing or open
	lastHoldEnd      atomic.Int64 // the expiry of the last anonymous hold in the secondary, in microseconds since 1970; 0 without such a hold

	excess atomic.Int64                 // the excess since the start of this process
	counts atomic.Pointer[outageCounts] // the counts of the outage or blip in progress, or nil; changed under mu only

	mu             sync.Mutex  // guards the fields below
	downShardCount int         // the number of shards in an outage; the outage of a shard ends after its replay
	outageError    error       // Outage.Err of the outage in progress
	lastOutage     Outage      // the last outage that has ended
	blipTimer      *time.Timer // runs reportBlip; nil before the first blip
	lastBlip       Outage      // the last reported blip
	blipCount      int64       // the number of reported blips
	lastBlipReport time.Time

	ctx     context.Context // the context of the probes
	cancel  context.CancelFunc
	workers sync.WaitGroup // probes and replays
}

// New returns a Limiter with closed breakers.
func New(o Options) *Limiter {
	o.Mode = cmp.Or(o.Mode, limit.FailLocal)
	if o.KeepsCounters == nil {
		o.KeepsCounters = func(int) bool { return false }
	}
	l := &Limiter{options: o}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	logBytes := new(atomic.Int64)
	for i := range o.Shards {
		l.breakers = append(l.breakers, &breaker{limiter: l, shard: i, log: &replayLog{bytes: logBytes}, stateStart: time.Now()})
	}
	if o.IdleProbePause > 0 {
		l.workers.Go(l.probeIdleShards)
	}
	return l
}

// Close ends the probes. The Limiter still decides, but open breakers stay open.
func (l *Limiter) Close() {
	l.mu.Lock()
	l.cancel()
	if l.blipTimer != nil {
		l.blipTimer.Stop()
	}
	l.mu.Unlock()
	l.workers.Wait()
}

// Take implements backend.Limiter.
func (l *Limiter) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	if l.lastHoldEnd.Load() == 0 {
		l.take(ctx, now, hits, results)
		return
	}
	l.takeWithHolds(ctx, now, hits, results)
}

// take does what Take does, for hits that release no hold in the secondary.
func (l *Limiter) take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	l.askPrimary(ctx, now, hits, results)
	hasError := func(r backend.Result) bool { return r.Err != nil }
	if l.unclosedBreakers.Load() > 0 || slices.ContainsFunc(results, hasError) {
		l.serveFailedHits(ctx, now, hits, results)
	}
}

// askPrimary lets the primary decide the hits whose breaker is not open. The other hits get errBreakerOpen.
func (l *Limiter) askPrimary(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	if l.unclosedBreakers.Load() == 0 {
		l.options.Primary.Take(ctx, now, hits, results)
		return
	}
	backend.TakePart(ctx, now, l.options.Primary, hits, results, func(i int) bool {
		isOpen := l.breakerOf(&hits[i]).isOpen()
		if isOpen {
			results[i] = backend.Result{Err: errBreakerOpen}
		}
		return !isOpen
	})
}

var errBreakerOpen = &backend.Error{Reason: backend.ReasonBreakerOpen, NotSent: true}

func (l *Limiter) breakerOf(h *backend.Hit) *breaker { return l.breakers[l.options.ShardOf(h)] }

// Package fallback decides hits in this process while the primary Limiter can't, as docs/failure.md says. The
// secondary Limiter grants a share of each limit, with counters of this replica. Each shard of the primary has a
// breaker. The breaker stops the calls to a shard that keeps failing, and closes once the shard answers a probe.
package fallback

import (
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

// Options configure a Limiter. All but Mode, IdleProbe, KeepsCounters and LastCount are required.
type Options struct {
	// Primary bounds the time of its Takes. If an answer can still come after the end of a Take, the error is a
	// backend.LateError.
	Primary   backend.Limiter
	Secondary Secondary

	Ratio float64           // the ratio of limits without their own: above 0 and at most 1
	Mode  limit.FailureMode // the failure mode of limits without their own; default FailLocal

	Shards  int                    // the number of shards of the primary
	ShardOf func(*backend.Hit) int // the shard of a hit, from 0 to Shards-1

	// Probe returns nil if a shard of the primary works again. It must charge a counter, because a shard
	// can answer reads and refuse writes.
	Probe func(ctx context.Context, shard int) error

	// IdleProbe is the pause between two probes of each shard with a closed breaker. These probes find an outage
	// without traffic. 0 means no such probes.
	IdleProbe time.Duration

	// KeepsCounters reports after a successful Probe whether the shard has certainly kept its counters since
	// the previous successful Probe. If so, the answers to the replay lower the price of the outage.
	KeepsCounters func(shard int) bool

	// LastCount returns and forgets the last count that the primary has answered for the counter of a hit.
	// since is the time of the answer, or the start of the window if the algorithm resets at once.
	LastCount func(now time.Time, h *backend.Hit) (spent int64, since time.Time, ok bool)

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

	// Served is called with the number of hits that one Take has decided without the primary.
	Served(hits int)

	// Replayed is called with the number of hits that the primary was charged with after an outage or a blip.
	Replayed(hits int64)
}

// StateChange reports that the primary went down or came up again. The primary is down from the first open breaker
// until all breakers have been closed for half a second.
type StateChange struct {
	Down   bool
	Outage Outage // the outage that has ended; if Down is set, it has only Start and Err
}

// BreakerChange reports that a breaker opened or closed.
type BreakerChange struct {
	Shard   int
	Open    bool
	Err     error         // the last failure if Open is set
	OpenFor time.Duration // the time for which the breaker was open if Open is not set
}

// Limiter is a backend.Layer that decides even if its primary fails. It still returns an error if another Limiter would
// fail as well, for example after the caller's cancellation.
type Limiter struct {
	o                Options
	breakers         []*breaker   // the breaker of each shard
	unclosedBreakers atomic.Int32 // breakers that are failing or open
	lastHoldEnd      atomic.Int64 // see noteHold

	excess atomic.Int64          // see Status.MaxExcessHits
	tally  atomic.Pointer[tally] // the tally of the outage or blip in progress; changed under mu only

	mu             sync.Mutex  // guards the fields below
	shardsDown     int         // shards in an outage; an outage ends after the replay
	outageError    error       // the failure that opened the first breaker of the outage in progress
	lastOutage     Outage      // the last outage that has ended
	blipTimer      *time.Timer // runs reportBlip; nil before the first blip
	lastBlip       Outage      // the last reported blip
	lastBlipReport time.Time

	ctx     context.Context // the context of the probes
	cancel  context.CancelFunc
	workers sync.WaitGroup // probes and replays
}

var _ backend.Layer = (*Limiter)(nil)

// New returns a Limiter with closed breakers.
func New(o Options) *Limiter {
	if o.Mode == limit.FailDefault {
		o.Mode = limit.FailLocal
	}
	l := &Limiter{o: o}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	logBytes := new(atomic.Int64)
	for i := range o.Shards {
		l.breakers = append(l.breakers, &breaker{limiter: l, shard: i, log: &replayLog{bytes: logBytes}, stateSince: time.Now()})
	}
	if o.IdleProbe > 0 {
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

// take is Take without the release of holds in the secondary.
func (l *Limiter) take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	l.askPrimary(ctx, now, hits, results)
	hasError := func(r backend.Result) bool { return r.Err != nil }
	if l.unclosedBreakers.Load() > 0 || slices.ContainsFunc(results, hasError) {
		l.serveFailedHits(ctx, now, hits, results)
	}
}

// askPrimary lets the primary decide hits, unless their breaker is open. Hits with an open breaker get errBreakerOpen.
func (l *Limiter) askPrimary(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	if l.unclosedBreakers.Load() == 0 {
		l.o.Primary.Take(ctx, now, hits, results)
		return
	}
	backend.TakePart(ctx, now, l.o.Primary, hits, results, func(i int) bool {
		isOpen := l.breakerOf(&hits[i]).isOpen()
		if isOpen {
			results[i] = backend.Result{Err: errBreakerOpen}
		}
		return !isOpen
	})
}

var errBreakerOpen = &backend.Error{Reason: backend.ReasonBreakerOpen, NotSent: true}

func (l *Limiter) breakerOf(h *backend.Hit) *breaker { return l.breakers[l.o.ShardOf(h)] }

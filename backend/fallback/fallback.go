// Package fallback decides hits in this process while the primary Limiter can't. A
// secondary Limiter grants a share of each limit. A breaker stops the calls to a primary
// that keeps failing, and closes once the primary answers a probe.
//
// Terms:
//
//   - primary: the Limiter that should decide. All replicas share its counters.
//   - secondary: the Limiter that decides in its place, with counters of this replica.
//   - shard: hits that fail together, such as the hits on one node of a cluster. Each
//     shard has its own breaker.
//   - open: a breaker is open while the hits of its shard bypass the primary.
//   - replay: charging the primary with hits that were admitted behind an open breaker.
package fallback

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// Namespace is the prefix of the keys in the secondary. It separates them from keys
// that the secondary counts for other reasons.
const Namespace = "redis_fallback:"

// Options configure a Limiter. Primary and Secondary are required.
type Options struct {
	// Primary bounds the time of its Takes itself.
	Primary, Secondary backend.Limiter

	// Ratio is the share of a limit that the secondary grants if the limit has no
	// ratio. It is greater than 0 and at most 1; the default is 0.5.
	Ratio float64

	// Mode is the behaviour of limits without a failure mode. The default is
	// FailLocal.
	Mode limit.FailureMode

	// Shards is the number of the primary's shards. The default is 1.
	Shards int

	// ShardOf returns the shard of a hit, from 0 to Shards-1.
	ShardOf func(*backend.Hit) int

	// Probe returns nil if a shard of the primary works again. It must charge a
	// counter, because reads can work where writes fail. By default the primary gets
	// a hit on a counter of its own.
	Probe func(ctx context.Context, shard int) error

	// OpenAfter is the time that a shard must fail, without a success, until its
	// breaker opens. The default is 50 ms.
	OpenAfter time.Duration

	// ProbeInterval is the first pause between probes. Each pause is twice as long as
	// the pause before, up to MaxProbeInterval, and varies by 20 %. The defaults are
	// 50 ms and 500 ms.
	ProbeInterval, MaxProbeInterval time.Duration

	// Observer receives events. It can be nil.
	Observer Observer
}

// Observer receives the events of a Limiter. Its methods must return at once and must
// not use the Limiter.
type Observer interface {
	// StateChanged is called when the primary goes down or comes up again. Calls
	// alternate and never overlap.
	StateChanged(StateChange)

	// Served is called with the number of hits that were decided without the primary.
	// The call comes with the decision.
	Served(hits int)

	// Replayed is called with the number of hits that the primary was charged with
	// after an outage.
	Replayed(hits int64)
}

// StateChange reports that the primary went down or came up again. It is down from the
// first open breaker until all breakers were closed for MaxProbeInterval. So a primary
// that flaps has one long outage.
type StateChange struct {
	Down bool

	// Err is the last failure if Down is set.
	Err error

	// Duration is the length of the outage, from the first failure to the last probe.
	// It is set if Down is false, like the two fields below.
	Duration time.Duration

	// Served is the number of hits that were decided without the primary.
	Served int64

	// Replayed is the number of hits that the primary was charged with afterwards.
	Replayed int64
}

func (o *Options) setDefaults() {
	if o.Ratio == 0 {
		o.Ratio = 0.5
	}
	if o.Mode == limit.FailDefault {
		o.Mode = limit.FailLocal
	}
	if o.Shards == 0 {
		o.Shards, o.ShardOf = 1, func(*backend.Hit) int { return 0 }
	}
	if o.Probe == nil {
		o.Probe = o.probeByHit
	}
	if o.OpenAfter == 0 {
		o.OpenAfter = 50 * time.Millisecond
	}
	if o.ProbeInterval == 0 {
		o.ProbeInterval = 50 * time.Millisecond
	}
	if o.MaxProbeInterval == 0 {
		o.MaxProbeInterval = 500 * time.Millisecond
	}
	if o.Observer == nil {
		o.Observer = noObserver{}
	}
}

type noObserver struct{}

func (noObserver) StateChanged(StateChange) {}
func (noObserver) Served(int)               {}
func (noObserver) Replayed(int64)           {}

// Limiter is a backend.Limiter that decides even if its primary fails. It returns only
// errors that another Limiter can't help with, such as the caller's cancellation. If all
// breakers are closed, a Take costs one atomic load more than a Take of the primary.
type Limiter struct {
	o         Options
	breakers  []*breaker   // by shard
	notClosed atomic.Int32 // breakers that are failing or open
	served    atomic.Int64 // hits ever decided without the primary
	batches   sync.Pool    // of *backend.SubBatch

	mu           sync.Mutex // guards the fields below
	stopped      bool
	shardsDown   int       // shards in an outage, which ends after the replay
	downFrom     time.Time // first failure of the outage in progress
	servedBefore int64     // value of served at downFrom
	replayed     int64     // hits replayed since downFrom

	ctx    context.Context // of the probes
	cancel context.CancelFunc
	probes sync.WaitGroup
}

var _ backend.Limiter = (*Limiter)(nil)

// New returns a Limiter with closed breakers.
func New(o Options) *Limiter {
	o.setDefaults()
	l := &Limiter{o: o}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.batches.New = func() any { return new(backend.SubBatch) }
	logBytes := new(atomic.Int64)
	for i := range o.Shards {
		l.breakers = append(l.breakers, &breaker{limiter: l, shard: i, log: newReplayLog(logBytes)})
	}
	return l
}

// Close ends the probes. The Limiter still decides, but open breakers stay open. Close
// leaves the primary and the secondary open.
func (l *Limiter) Close() {
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	l.cancel()
	l.probes.Wait()
}

// Down reports whether the primary is down. See StateChange.
func (l *Limiter) Down() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shardsDown > 0
}

// Take implements backend.Limiter.
func (l *Limiter) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	if l.notClosed.Load() > 0 && l.hasOpenBreaker(hits) {
		l.takeFromClosed(ctx, now, hits, results)
	} else {
		l.o.Primary.Take(ctx, now, hits, results)
	}
	if l.notClosed.Load() > 0 || hasError(results) {
		l.serveFailed(ctx, now, hits, results)
	}
}

// errBreakerOpen is the error of hits that bypassed the primary.
var errBreakerOpen = errors.New("fallback: breaker is open")

func bypassedPrimary(r *backend.Result) bool { return r.Err == errBreakerOpen } //nolint:errorlint // it is never wrapped

func (l *Limiter) breakerOf(h *backend.Hit) *breaker { return l.breakers[l.o.ShardOf(h)] }

func (l *Limiter) hasOpenBreaker(hits []backend.Hit) bool {
	for i := range hits {
		if l.breakerOf(&hits[i]).isOpen() {
			return true
		}
	}
	return false
}

func hasError(results []backend.Result) bool {
	for i := range results {
		if results[i].Err != nil {
			return true
		}
	}
	return false
}

// takeFromClosed sends the hits behind closed breakers to the primary. The other hits
// get errBreakerOpen.
func (l *Limiter) takeFromClosed(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	batch := l.newBatch()
	defer l.releaseBatch(batch)
	for i := range hits {
		if l.breakerOf(&hits[i]).isOpen() {
			results[i] = backend.Result{Err: errBreakerOpen}
		} else {
			batch.Add(i, hits[i])
		}
	}
	batch.Take(ctx, now, l.o.Primary)
	batch.CopyResults(results)
}

func (l *Limiter) newBatch() *backend.SubBatch { return l.batches.Get().(*backend.SubBatch) }

func (l *Limiter) releaseBatch(s *backend.SubBatch) {
	s.Reset()
	l.batches.Put(s)
}

// Package fallback goes on without its primary Limiter: what the primary can't
// decide, a secondary one decides in this process, by a share of each limit; and
// a primary that keeps failing is left alone until it answers a probe.
//
// Terms:
//
//   - primary: the Limiter that should decide, shared by all replicas;
//   - secondary: the one that stands in, of this replica alone;
//   - part: hits whose fate in the primary is one, such as those on one node of a
//     cluster. Each part has a breaker of its own;
//   - open: a part whose hits go to the secondary without asking the primary;
//   - ledger: what an open part has admitted, to be charged to the primary later.
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

// Namespace starts the keys of the secondary's counters, so that they never meet
// those of limits it holds in its own right.
const Namespace = "redis_fallback:"

// Options of a Limiter. Primary and Secondary are required. The primary bounds the
// time of its Takes itself.
type Options struct {
	Primary, Secondary backend.Limiter

	// Ratio is the share of a limit that the secondary grants where the limit
	// doesn't say; over 0 up to 1, 0.5 by default.
	Ratio float64

	// Mode is what a limit does meanwhile where it doesn't say; FailLocal by
	// default.
	Mode limit.FailureMode

	// Parts is how many parts the primary has, 1 by default, and Part is the one
	// of a hit, from 0.
	Parts int
	Part  func(*backend.Hit) int

	// Probe asks the primary whether a part works again; it must charge a counter
	// to find out, as reading can work where writing doesn't. Without it the
	// primary gets one hit of its own.
	Probe func(ctx context.Context, part int) error

	// TripAfter is how long a part must fail, without a success in between, until
	// it is open; 50 ms by default. Single failures only concern their own calls.
	TripAfter time.Duration

	// ProbeEvery is the first pause between probes, 50 ms by default. It doubles
	// up to ProbeAtMost, 500 ms by default, give or take a fifth at random.
	ProbeEvery, ProbeAtMost time.Duration

	// OnStateChange is told when the first part opens and when all have been closed
	// for ProbeAtMost, in this order, one at a time. So a primary that flaps is told
	// as one that is away. It must neither block nor use the Limiter.
	OnStateChange func(StateChange)
}

// StateChange tells that the primary went or came back.
type StateChange struct {
	// Down is true when it went. Err then is what failed.
	Down bool
	Err  error

	// Lasted is how long it was away, from the first failure on, Served how many
	// hits were decided without it, and Carried how many of these were charged to
	// it afterwards; all if it came back.
	Lasted          time.Duration
	Served, Carried int64
}

func (o *Options) setDefaults() {
	if o.Ratio == 0 {
		o.Ratio = 0.5
	}
	if o.Mode == limit.FailDefault {
		o.Mode = limit.FailLocal
	}
	if o.Parts == 0 {
		o.Parts, o.Part = 1, func(*backend.Hit) int { return 0 }
	}
	if o.Probe == nil {
		o.Probe = o.probeByHit
	}
	if o.TripAfter == 0 {
		o.TripAfter = 50 * time.Millisecond
	}
	if o.ProbeEvery == 0 {
		o.ProbeEvery = 50 * time.Millisecond
	}
	if o.ProbeAtMost == 0 {
		o.ProbeAtMost = 500 * time.Millisecond
	}
	if o.OnStateChange == nil {
		o.OnStateChange = func(StateChange) {}
	}
}

// Limiter is a backend.Limiter that always decides. Of its errors only those
// remain that are the caller's doing, such as a context that has ended. While all
// is well it costs one atomic load.
type Limiter struct {
	o        Options
	parts    []*part
	troubled atomic.Int32 // parts that are failing or open
	served   atomic.Int64 // hits decided without the primary, ever
	shares   *backend.Derived
	calls    sync.Pool // of *backend.SubBatch

	mu      sync.Mutex // guards what follows
	open    int        // parts that are open, or were until just now
	down    time.Time  // since when, if any is
	before  int64      // served until then
	carried int64      // since then
	closed  bool

	stop  context.CancelFunc
	ctx   context.Context // of probes
	tasks sync.WaitGroup
}

var _ backend.Limiter = (*Limiter)(nil)

// New returns a Limiter whose parts are all closed: it asks the primary.
func New(o Options) *Limiter {
	o.setDefaults()
	l := &Limiter{o: o}
	l.ctx, l.stop = context.WithCancel(context.Background())
	l.shares = backend.NewDerived(l.share)
	l.calls.New = func() any { return new(backend.SubBatch) }
	room := new(atomic.Int64)
	for i := range o.Parts {
		l.parts = append(l.parts, &part{limiter: l, number: i, ledger: newLedger(room)})
	}
	return l
}

// Close ends the probes. Takes after it still decide, but parts that are open
// stay so. It closes neither the primary nor the secondary.
func (l *Limiter) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.stop()
	l.tasks.Wait()
}

// Down tells whether any part is open, or was until just now.
func (l *Limiter) Down() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open > 0
}

// Take implements backend.Limiter.
func (l *Limiter) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	if l.troubled.Load() > 0 && l.anyOpen(hits) {
		l.takeClosed(ctx, now, hits, results)
	} else {
		l.o.Primary.Take(ctx, now, hits, results)
	}
	if l.troubled.Load() > 0 || anyFailed(results) {
		l.standIn(ctx, now, hits, results)
	}
}

// errOpen is the error of hits that the primary was not asked for.
var errOpen = errors.New("fallback: the breaker is open")

func notAsked(r *backend.Result) bool { return r.Err == errOpen } //nolint:errorlint // it is never wrapped

func (l *Limiter) partOf(h *backend.Hit) *part { return l.parts[l.o.Part(h)] }

func (l *Limiter) anyOpen(hits []backend.Hit) bool {
	for i := range hits {
		if l.partOf(&hits[i]).isOpen() {
			return true
		}
	}
	return false
}

func anyFailed(results []backend.Result) bool {
	for i := range results {
		if results[i].Err != nil {
			return true
		}
	}
	return false
}

// takeClosed asks the primary for the hits whose part is closed, and marks the
// others.
func (l *Limiter) takeClosed(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	asked := l.calls.Get().(*backend.SubBatch)
	defer l.release(asked)
	for i := range hits {
		if l.partOf(&hits[i]).isOpen() {
			results[i] = backend.Result{Err: errOpen}
		} else {
			asked.Add(i, hits[i])
		}
	}
	asked.Take(ctx, now, l.o.Primary)
	asked.CopyResults(results)
}

func (l *Limiter) release(s *backend.SubBatch) {
	s.Reset()
	l.calls.Put(s)
}

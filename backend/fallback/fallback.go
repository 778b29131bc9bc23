// Package fallback goes on without its primary Limiter: what the primary can't
// decide, a secondary one decides in this process, by a share of each limit; and
// a primary that keeps failing is left alone until it answers a probe.
//
// Terms:
//
//   - primary: the Limiter that should decide, shared by all replicas;
//   - secondary: the stand-in, of this replica alone;
//   - part: hits whose fate in the primary is one, such as those on one node of a
//     cluster. Each part has a breaker of its own;
//   - open: a part whose hits don't go to the primary, but to the secondary.
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

// Options of a Limiter. Primary and Secondary are required.
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
	// up to ProbeAtMost, 1 s by default, give or take a fifth at random.
	ProbeEvery, ProbeAtMost time.Duration

	// OnStateChange is told when the first part opens and when the last one
	// closes. It must not block.
	OnStateChange func(StateChange)
}

// StateChange tells that the primary went or came back.
type StateChange struct {
	// Down is true when it went.
	Down bool

	// Err is what failed, if it went.
	Err error

	// Lasted is how long it was away, and Served how many hits were decided
	// without it, if it came back.
	Lasted time.Duration
	Served int64

	// Carried is how many hits, admitted meanwhile, were charged to it.
	Carried int64
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
		o.ProbeAtMost = time.Second
	}
	if o.OnStateChange == nil {
		o.OnStateChange = func(StateChange) {}
	}
}

// Limiter is a backend.Limiter that always decides. Of its errors only those
// remain that are the caller's doing, such as a context that has ended.
type Limiter struct {
	o      Options
	parts  []*part
	scaled scaled
	calls  sync.Pool // of *standIn

	served atomic.Int64 // hits decided without the primary since it went

	mu   sync.Mutex // guards what follows
	open int        // parts
	down time.Time  // since when, if any is

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
	l.calls.New = func() any { return new(standIn) }
	for i := range o.Parts {
		l.parts = append(l.parts, &part{limiter: l, number: i, ledger: newLedger()})
	}
	return l
}

// Close ends the probes. It closes neither the primary nor the secondary.
func (l *Limiter) Close() {
	l.stop()
	l.tasks.Wait()
}

// Down tells whether any part is open.
func (l *Limiter) Down() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open > 0
}

// Take implements backend.Limiter.
func (l *Limiter) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	open := 0
	for i := range hits {
		if l.partOf(&hits[i]).open.Load() {
			open++
		}
	}
	switch open {
	case 0:
		l.o.Primary.Take(ctx, now, hits, results)
	default:
		l.takeClosed(ctx, now, hits, results)
	}
	l.standIn(ctx, now, hits, results)
}

// partOf is the part of a hit.
func (l *Limiter) partOf(h *backend.Hit) *part { return l.parts[l.o.Part(h)] }

// errOpen marks the hits that the primary was not asked for.
var errOpen = errors.New("fallback: the breaker is open")

// takeClosed asks the primary for the hits whose part is closed, and marks the
// others.
func (l *Limiter) takeClosed(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	c := l.calls.Get().(*standIn)
	for i := range hits {
		if l.partOf(&hits[i]).open.Load() {
			results[i] = backend.Result{Err: errOpen}
			continue
		}
		c.add(i, hits[i])
	}
	if len(c.hits) > 0 {
		l.o.Primary.Take(ctx, now, c.hits, c.results)
		for j, i := range c.index {
			results[i] = c.results[j]
		}
	}
	l.release(c)
}

// standIn decides what the primary could not, and tells the parts how it went.
func (l *Limiter) standIn(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	var c *standIn
	for i := range hits {
		p, err := l.partOf(&hits[i]), results[i].Err
		switch {
		case err == nil:
			p.succeeded()
			continue
		case err == errOpen: //nolint:errorlint // it is our own mark, never wrapped
		case ctx.Err() != nil || !errors.Is(err, backend.ErrUnavailable):
			continue // the caller's doing, or nothing that another Limiter could mend
		default:
			p.failed(now, err)
		}
		l.served.Add(1)
		switch mode := l.mode(hits[i].Limit); mode {
		case limit.FailAllow:
			results[i] = backend.Result{Degraded: true, Result: limit.Result{Allowed: true, Remaining: hits[i].Limit.Capacity()}}
		case limit.FailDeny:
			results[i] = backend.Result{Degraded: true, Result: limit.Result{RetryAfter: l.o.ProbeAtMost.Microseconds(), ResetAfter: l.o.ProbeAtMost.Microseconds()}}
		default:
			if c == nil {
				c = l.calls.Get().(*standIn)
			}
			h := hits[i]
			h.Limit = l.scaled.of(h.Limit, l.ratio(h.Limit))
			c.add(i, h)
		}
	}
	if c != nil {
		l.takeLocal(ctx, now, c, hits, results)
		l.release(c)
	}
}

// takeLocal has the secondary decide c's hits, and writes down what it admitted
// while the primary was certain not to have been charged.
func (l *Limiter) takeLocal(ctx context.Context, now time.Time, c *standIn, hits []backend.Hit, results []backend.Result) {
	c.nameLocally()
	l.o.Secondary.Take(ctx, now, c.hits, c.results)
	for j, i := range c.index {
		h := &hits[i]
		if results[i].Err == errOpen && h.N > 0 && c.results[j].Allowed { //nolint:errorlint // as above
			l.partOf(h).ledger.add(h.Key, h.Limit, h.N)
		}
		results[i] = c.results[j]
		results[i].Degraded = true
	}
}

func (l *Limiter) mode(lim *limit.Limit) limit.FailureMode {
	if lim.OnBackendFailure != limit.FailDefault {
		return lim.OnBackendFailure
	}
	return l.o.Mode
}

func (l *Limiter) ratio(lim *limit.Limit) float64 {
	if lim.FallbackRatio != 0 {
		return lim.FallbackRatio
	}
	return l.o.Ratio
}

// standIn is some of a call's hits, on their own.
type standIn struct {
	hits    []backend.Hit
	results []backend.Result
	index   []int // in the whole call
	keys    []byte
}

func (c *standIn) add(i int, h backend.Hit) {
	c.hits = append(c.hits, h)
	c.results = append(c.results, backend.Result{})
	c.index = append(c.index, i)
}

// nameLocally puts the hits' keys into Namespace.
func (c *standIn) nameLocally() {
	size := 0
	for i := range c.hits {
		size += len(Namespace) + len(c.hits[i].Key)
	}
	if cap(c.keys) < size {
		c.keys = make([]byte, 0, size)
	}
	c.keys = c.keys[:0]
	for i := range c.hits {
		from := len(c.keys)
		c.keys = append(append(c.keys, Namespace...), c.hits[i].Key...)
		c.hits[i].Key = c.keys[from:len(c.keys):len(c.keys)]
	}
}

// maxKeptKeys bounds the memory, in bytes, that goes back to the pool.
const maxKeptKeys = 64 << 10

func (l *Limiter) release(c *standIn) {
	if cap(c.keys) > maxKeptKeys {
		return
	}
	clear(c.hits)
	clear(c.results)
	c.hits, c.results, c.index = c.hits[:0], c.results[:0], c.index[:0]
	l.calls.Put(c)
}

// scaled remembers limits at their share. Limits that requests bring along are
// new each time, so it forgets all when there are too many.
type scaled struct {
	limits sync.Map // scaledKey → *limit.Limit
	count  atomic.Int64
}

type scaledKey struct {
	limit *limit.Limit
	ratio float64
}

const maxScaled = 10_000

func (s *scaled) of(l *limit.Limit, ratio float64) *limit.Limit {
	key := scaledKey{l, ratio}
	if known, ok := s.limits.Load(key); ok {
		return known.(*limit.Limit)
	}
	if s.count.Add(1) > maxScaled {
		s.limits.Clear()
		s.count.Store(1)
	}
	made := l.Scaled(ratio)
	s.limits.Store(key, made)
	return made
}

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

// part is a breaker: fine, failing, or open until a probe succeeds. It is ours, as
// the breakers of libraries lock on every call, and let a caller's own call be the
// probe.
type part struct {
	limiter *Limiter
	number  int
	ledger  *ledger

	state atomic.Int32 // changed under mu only

	mu        sync.Mutex    // guards what follows
	failures  int           // while failing
	since     time.Time     // when they began
	before    int64         // limiter.served until then
	openUntil time.Time     // when it was open last
	pause     time.Duration // between probes then, at the end
}

const (
	fine int32 = iota
	failing
	open
)

// enough is how many failures it takes, besides TripAfter.
const enough = 3

func (p *part) isOpen() bool { return p.state.Load() == open }

func (p *part) succeeded() {
	if p.state.Load() != failing {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state.Load() == failing {
		p.become(fine)
	}
}

func (p *part) failed(err error) {
	if p.isOpen() {
		return
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.state.Load() {
	case fine:
		p.failures, p.since, p.before = 1, now, p.limiter.served.Load()
		p.become(failing)
	case failing:
		p.failures++
		if p.failures >= enough && now.Sub(p.since) >= p.limiter.o.TripAfter {
			p.become(open)
			p.limiter.opened(p, err)
		}
	}
}

// become changes the state. p.mu must be held.
func (p *part) become(state int32) {
	switch was := p.state.Swap(state); {
	case was == fine:
		p.limiter.troubled.Add(1)
	case state == fine:
		p.limiter.troubled.Add(-1)
	}
}

// opened starts the probes of p, whose mu must be held.
func (l *Limiter) opened(p *part, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open++
	if l.closed {
		return
	}
	pause := l.o.ProbeEvery
	if time.Since(p.openUntil) < l.o.ProbeAtMost { // it flaps: go on where it was
		pause = min(2*p.pause, l.o.ProbeAtMost)
	}
	l.tasks.Go(func() { p.recover(l.ctx, pause) })
	if l.open == 1 {
		l.down, l.before, l.carried = p.since, p.before, 0
		l.o.OnStateChange(StateChange{Down: true, Err: err})
	}
}

// recover probes until the primary answers, closes p and settles its ledger.
func (p *part) recover(ctx context.Context, pause time.Duration) {
	l := p.limiter
	for {
		if !wait.For(ctx, jittered(pause)) {
			return
		}
		if l.o.Probe(ctx, p.number) == nil && ctx.Err() == nil {
			break
		}
		pause = min(2*pause, l.o.ProbeAtMost)
	}
	closed := time.Now()
	p.mu.Lock()
	p.openUntil, p.pause = closed, pause
	p.become(fine)
	p.mu.Unlock()

	carried := p.settle(ctx)
	if wait.For(ctx, l.o.ProbeAtMost) { // it is back only if it stays so; and calls may have seen p open until now
		carried += p.settle(ctx)
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	l.carried += carried
	if l.open == 0 && ctx.Err() == nil {
		l.o.OnStateChange(StateChange{Lasted: closed.Sub(l.down), Served: l.served.Load() - l.before, Carried: l.carried})
	}
}

// jittered is d, give or take a fifth, so that replicas don't come all at once.
func jittered(d time.Duration) time.Duration {
	return d + time.Duration((rand.Float64()*0.4-0.2)*float64(d))
}

// probeByHit is the Probe where Options give none.
func (o *Options) probeByHit(ctx context.Context, _ int) error {
	hits := []backend.Hit{backend.Probe(Namespace + "probe")}
	results := make([]backend.Result, 1)
	o.Primary.Take(ctx, time.Now(), hits, results)
	return results[0].Err
}

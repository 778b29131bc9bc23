package fallback

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// part is a breaker: closed, or open until a probe succeeds. Callers only read
// two atomics of it while all is well. It is ours, as the breakers of libraries
// lock on every call, and let a caller's own call be the probe.
type part struct {
	limiter *Limiter
	number  int
	ledger  *ledger

	open     atomic.Bool
	failures atomic.Int64
	since    atomic.Int64 // when the failures began, microseconds
}

// enough is how many failures it takes, besides TripAfter.
const enough = 3

func (p *part) succeeded() {
	if p.failures.Load() != 0 {
		p.failures.Store(0)
	}
}

func (p *part) failed(now time.Time, err error) {
	at := now.UnixMicro()
	n := p.failures.Add(1)
	if n == 1 {
		p.since.Store(at)
		return
	}
	if n >= enough && at-p.since.Load() >= p.limiter.o.TripAfter.Microseconds() && p.open.CompareAndSwap(false, true) {
		p.limiter.opened(p, err)
	}
}

// opened starts the probes of p.
func (l *Limiter) opened(p *part, err error) {
	l.mu.Lock()
	l.open++
	first := l.open == 1
	if first {
		l.down = time.Now()
		l.served.Store(enough)
	}
	l.mu.Unlock()
	if l.ctx.Err() != nil {
		return
	}
	l.tasks.Go(func() { p.recover(l.ctx) })
	if first {
		l.o.OnStateChange(StateChange{Down: true, Err: err})
	}
}

// recover probes until the primary answers, and closes p.
func (p *part) recover(ctx context.Context) {
	l := p.limiter
	for pause := l.o.ProbeEvery; ; pause = min(2*pause, l.o.ProbeAtMost) {
		jitter := time.Duration((rand.Float64()*0.4 - 0.2) * float64(pause))
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause + jitter):
		}
		if l.o.Probe(ctx, p.number) == nil && ctx.Err() == nil {
			break
		}
	}
	p.failures.Store(0)
	p.open.Store(false)
	carried := p.settle(ctx)

	l.mu.Lock()
	l.open--
	last := l.open == 0
	change := StateChange{Lasted: time.Since(l.down), Served: l.served.Load(), Carried: carried}
	l.mu.Unlock()
	if last {
		l.o.OnStateChange(change)
	}
}

// probeByHit charges one hit to a counter of no meaning.
func (o *Options) probeByHit(ctx context.Context, _ int) error {
	hits := []backend.Hit{{Key: []byte(Namespace + "probe"), Limit: probeLimit, N: 1}}
	results := make([]backend.Result, 1)
	o.Primary.Take(ctx, time.Now(), hits, results)
	return results[0].Err
}

var probeLimit = func() *limit.Limit {
	l, err := limit.New(limit.Spec{Requests: 1, Unit: limit.Second, ChargeDenied: true})
	if err != nil {
		panic(err)
	}
	return l
}()

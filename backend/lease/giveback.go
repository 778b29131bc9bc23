package lease

import (
	"context"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

const (
	// sweepPause is the pause between two searches for idle leases.
	sweepPause = 500 * time.Millisecond

	// idleTime is the time without hits after which permits go back.
	idleTime = second

	// forgetTime is the time without hits after which an empty lease is forgotten.
	forgetTime = 10 * second

	// maxReturns bounds the leases whose permits go back in one trip.
	maxReturns = 128
)

// permitReturn has the permits and the allowance that a lease gives back.
type permitReturn struct {
	key, budgetKey []byte
	limit, budget  *limit.Limit
	window         int64
	permits        int64
	allowance      int64
	isLost         bool // the return of the permits has failed
}

// empty drops all permits and the allowance of e, and returns them. ok is false if there are
// none.
func (e *lease) empty() (g permitReturn, ok bool) {
	g = permitReturn{
		key: e.key, budgetKey: e.budgetKey, limit: e.limit, budget: e.budget, window: e.window,
		permits: e.permits, allowance: e.allowance,
	}
	e.drop()
	return g, g.permits > 0 || g.allowance > 0
}

// returnLater gives back the permits and the allowance of e, in the background. The caller holds the
// mutex.
func (l *Limiter) returnLater(e *lease, now int64) {
	if g, ok := e.empty(); ok {
		l.spawn(func() { l.giveBack([]permitReturn{g}, now) })
	}
}

// giveBack returns permits and allowances to Source: first the permits, then the allowances
// whose permits are back. An allowance for lost permits stays charged to the budget.
func (l *Limiter) giveBack(all []permitReturn, now int64) {
	for len(all) > 0 {
		part := all[:min(len(all), maxReturns)]
		all = all[len(part):]
		l.giveBackPart(part, now)
	}
}

func (l *Limiter) giveBackPart(all []permitReturn, now int64) {
	permits := backend.NewSubBatch()
	defer permits.Release()
	for i, g := range all {
		if g.permits > 0 {
			permits.Add(i, backend.Hit{Key: g.key, Limit: g.limit, N: -g.permits, Window: g.window})
		}
	}
	l.send(permits, now)
	for j, i := range permits.Index {
		if permits.Results[j].Err != nil {
			all[i].isLost = true
		}
	}
	budgets := backend.NewSubBatch()
	defer budgets.Release()
	for i, g := range all {
		l.countReturn(&g)
		if g.isLost {
			g.allowance -= g.permits
		}
		if n := g.allowance; n > 0 {
			budgets.Add(i, backend.Hit{Key: g.budgetKey, Limit: g.budget, N: -n, Window: g.window})
		}
	}
	l.send(budgets, now)
}

// Run returns the permits of idle counters until ctx is done.
func (l *Limiter) Run(ctx context.Context) {
	ticker := time.NewTicker(sweepPause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			l.Sweep(now)
		}
	}
}

// Sweep returns the permits of counters without hits for a second, and forgets leases that
// were not used for longer.
func (l *Limiter) Sweep(now time.Time) {
	l.sweeping.Lock()
	defer l.sweeping.Unlock()
	micros := l.micros(now)
	for i := range l.shards {
		l.giveBack(l.shards[i].sweep(micros), micros)
	}
}

// sweep empties idle leases and returns their permits and allowances.
func (s *shard) sweep(now int64) (all []permitReturn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, e := range s.leases {
		if e.hasEnded(now) && e.limit.Algorithm.CountsWindows() {
			s.stats.Lapsed += e.drop()
		}
		switch idle := now - e.lastUsed; {
		case e.isBusy || idle < idleTime:
		case e.allowance > 0:
			if g, ok := e.empty(); ok {
				all = append(all, g)
			}
		case idle >= forgetTime:
			delete(s.leases, id)
		}
	}
	return all
}

// Close returns all permits. Later Takes go to Next.
func (l *Limiter) Close() { l.closeAt(time.Now()) }

func (l *Limiter) closeAt(now time.Time) {
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
	}
	l.workers.Wait()
	l.sweeping.Lock()
	defer l.sweeping.Unlock()
	var all []permitReturn
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		for _, e := range s.leases {
			if g, ok := e.empty(); ok {
				all = append(all, g)
			}
		}
		s.mu.Unlock()
	}
	l.giveBack(all, l.micros(now))
	l.cancel()
}

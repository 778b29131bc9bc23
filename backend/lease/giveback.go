package lease

import (
	"context"
	"slices"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/base/wait"
)

const (
	sweepPause = 500 * time.Millisecond // the pause between two searches for idle leases
	idleTime   = second                 // the time without hits after which a lease gives back its permits and its allowance
	forgetTime = 10 * second            // the time without hits after which an empty lease is forgotten
	maxReturns = 128                    // the most leases that give back permits in one trip
)

type permitReturn struct {
	account
	permits   int64
	allowance int64
	isLost    bool // the trip with the permits has failed
}

func (e *lease) removePermits(returns []permitReturn) []permitReturn {
	if e.permits > 0 || e.allowance > 0 {
		returns = append(returns, permitReturn{account: e.account, permits: e.permits, allowance: e.allowance})
	}
	e.dropPermits()
	return returns
}

// giveBackInBackground removes the permits and the allowance of e, and gives them back later. The caller holds the mutex.
func (l *Limiter) giveBackInBackground(e *lease, now int64) {
	if returns := e.removePermits(nil); len(returns) > 0 {
		l.spawn(func() { l.giveBack(returns, now) })
	}
}

func (l *Limiter) giveBack(returns []permitReturn, now int64) {
	for part := range slices.Chunk(returns, maxReturns) {
		l.giveBackPart(part, now)
	}
}

// giveBackPart gives back the permits in one trip, and the allowances in a second trip. Permits that could not be given
// back stay charged to the budget.
func (l *Limiter) giveBackPart(returns []permitReturn, now int64) {
	permitBatch := backend.NewSubBatch()
	defer permitBatch.Release()
	for i, g := range returns {
		if g.permits > 0 {
			permitBatch.Add(i, g.permitHit(-g.permits))
		}
	}
	l.send(permitBatch, now)
	for batchIndex, i := range permitBatch.Index {
		if permitBatch.Results[batchIndex].Err != nil {
			returns[i].isLost = true
		}
	}
	budgetBatch := backend.NewSubBatch()
	defer budgetBatch.Release()
	for i, g := range returns {
		l.countReturn(&g)
		if g.isLost {
			g.allowance -= g.permits
		}
		if g.allowance > 0 {
			budgetBatch.Add(i, g.budgetHit(-g.allowance))
		}
	}
	l.send(budgetBatch, now)
}

// Run calls Sweep twice a second until ctx is done.
func (l *Limiter) Run(ctx context.Context) {
	for wait.Sleep(ctx, sweepPause) {
		l.Sweep(time.Now())
	}
}

// Sweep gives back the permits of idle leases. It forgets leases that had no hits for forgetTime.
func (l *Limiter) Sweep(now time.Time) {
	l.sweepMutex.Lock()
	defer l.sweepMutex.Unlock()
	micros := l.micros(now)
	var returns []permitReturn
	l.forEachStripe(func(s *stripe) { returns = append(returns, s.sweep(micros)...) })
	l.giveBack(returns, micros)
}

// sweep removes the permits and allowances of idle leases, and returns them. The caller holds the mutex.
func (s *stripe) sweep(now int64) (returns []permitReturn) {
	for id, e := range s.leases {
		if e.hasEnded(now) && e.limit.Algorithm.CountsByWindow() {
			s.stats.LapsedPermits += e.dropPermits()
		}
		switch unusedTime := now - e.lastHitAt; {
		case e.isRefilling || unusedTime < idleTime:
		case e.allowance > 0:
			returns = e.removePermits(returns)
		case unusedTime >= forgetTime:
			delete(s.leases, id)
		}
	}
	return returns
}

// Close gives back all permits. After it, Take sends all hits to Options.Next.
func (l *Limiter) Close() { l.closeAt(time.Now()) }

func (l *Limiter) closeAt(now time.Time) {
	l.forEachStripe(func(s *stripe) { s.isClosed = true })
	l.workers.Wait()
	l.sweepMutex.Lock()
	defer l.sweepMutex.Unlock()
	var returns []permitReturn
	l.forEachStripe(func(s *stripe) {
		for _, e := range s.leases {
			returns = e.removePermits(returns)
		}
	})
	l.giveBack(returns, l.micros(now))
	l.cancel()
}

package local

import (
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// SpendAtLeast raises the spent hits of a counter to n, unless more are spent. n is at most
// the capacity of lim.
func (l *Limiter) SpendAtLeast(now time.Time, key []byte, lim *limit.Limit, n int64) {
	l.applyResets([]backend.Hit{{Key: key, Limit: lim}})
	id := l.seeds.ID(key, lim.Tag())
	s := l.stripeOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	micros := now.UnixMicro()
	if missing := n - lim.Spent(s.take(id, lim, counterChange{now: micros})); missing > 0 {
		s.take(id, lim, counterChange{now: micros, n: missing})
	}
}

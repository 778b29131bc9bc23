package fallback

import (
	"math"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// Secondary is the Limiter that decides in place of the primary.
type Secondary interface {
	backend.Limiter

	// SpendAtLeast raises the spent hits of a counter to n, unless more are spent. n is at most
	// the capacity of l.
	SpendAtLeast(now time.Time, key []byte, l *limit.Limit, n int64)
}

// startFromLastCount lets the secondary's counter of h start from the last count of the primary:
// if the primary has spent a part of the limit, the same part of the share is spent. localHit is h
// as the secondary gets it.
func (l *Limiter) startFromLastCount(now time.Time, h, localHit *backend.Hit) {
	if l.o.LastCount == nil || h.Limit.Algorithm.HasHolds() { // nobody would release holds without a holder
		return
	}
	spent, since, ok := l.o.LastCount(now, h)
	if !ok || spent <= 0 {
		return
	}
	if h.Limit.Algorithm.Aligned() {
		since = now // in the same window, whatever the clock of the primary says
	}
	part := min(float64(spent)/float64(h.Limit.Capacity()), 1)
	share := localHit.Limit
	l.o.Secondary.SpendAtLeast(since, localHit.Key, share, int64(math.Floor(part*float64(share.Capacity()))))
}

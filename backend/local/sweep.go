package local

import (
	"context"
	"time"

	"github.com/seed-81f232ab/rls/internal/fingerprint"
)

// Run sweeps until ctx ends, a shard at a time, and all shards once in each interval. A
// minute is a good interval.
func (l *Limiter) Run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(max(interval/time.Duration(len(l.shards)), 1))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			l.Sweep(now)
		}
	}
}

// Sweep forgets the counters of one shard that have expired at now, and frees unused memory
// of the shard. Each call takes the next shard. A sweep changes no answer.
func (l *Limiter) Sweep(now time.Time) {
	s := &l.shards[(l.swept.Add(1)-1)%uint64(len(l.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(now.UnixMicro())
}

func (s *shard) sweep(now int64) {
	// The order is backwards because the last entry moves to the place of a removed one.
	for slot := s.size - 1; slot >= 0; slot-- {
		if s.at(slot).expires <= now {
			s.forget(slot)
		}
	}
	for maxKeys := s.budget.keysPerShard(); s.size > maxKeys; {
		s.evict(fingerprint.ID{}, now)
	}
	s.freeBlocks(0)
	if s.size == 0 {
		s.table = table{}
	} else if n := s.size + s.size/4; len(s.cells) > 6*n+48 {
		s.resizeCells(n)
	}
}

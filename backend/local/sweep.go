package local

import (
	"context"
	"time"

	"github.com/seed-81f232ab/rls/internal/fingerprint"
)

// Run sweeps until ctx ends: all counters once in each span of every, a shard at
// a time. A minute is a good span.
func (l *Limiter) Run(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(max(every/time.Duration(len(l.shards)), 1))
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

// Sweep forgets the counters of one shard that have run out at now, and gives
// back memory that was needed for many more. Each call takes the next shard. No
// answer depends on it.
func (l *Limiter) Sweep(now time.Time) {
	s := &l.shards[(l.swept.Add(1)-1)%uint64(len(l.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(now.UnixMicro())
}

func (s *shard) sweep(now int64) {
	// Backwards, as the last entry moves to where one is removed.
	for slot := len(s.entries) - 1; slot >= 0; slot-- {
		if s.entries[slot].expires <= now {
			s.forget(slot)
		}
	}
	for most := s.room.perShard(); len(s.entries) > most; {
		s.drop(fingerprint.ID{}, now)
	}
	if n := len(s.entries); n == 0 {
		s.table = table{}
	} else if cap(s.entries) > 4*n+32 {
		s.resize(n + n/4)
	}
}

package local

import (
	"context"
	"time"

	"github.com/seed-81f232ab/rls/internal/base/fingerprint"
)

// Run sweeps until ctx ends, a stripe at a time, and all stripes once in each interval. A
// minute is a good interval.
func (l *Limiter) Run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(max(interval/time.Duration(len(l.stripes)), 1))
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

// Sweep forgets the counters of one stripe that have expired at now, and frees unused memory
// of the stripe. Each call takes the next stripe. A sweep changes no answer.
func (l *Limiter) Sweep(now time.Time) {
	s := &l.stripes[(l.sweeps.Add(1)-1)%uint64(len(l.stripes))]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(now.UnixMicro())
}

func (s *stripe) sweep(now int64) {
	// The order is backwards because the last entry moves to the place of a removed one.
	for index := s.size - 1; index >= 0; index-- {
		if s.at(index).expires <= now {
			s.forget(index)
		}
	}
	for maxKeys := s.memory.keysPerStripe(); s.size > maxKeys; {
		s.evict(fingerprint.ID{}, now)
	}
	s.freeBlocks(0)
	if s.size == 0 {
		s.table = table{}
	} else if n := s.size + s.size/4; len(s.cells) > 6*n+48 {
		s.resizeCells(n)
	}
}

package overrides

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/seed-81f232ab/rls/internal/wait"
)

// Run keeps in step with Redis until ctx is done. At most one Run may be running.
func (s *Store) Run(ctx context.Context) {
	if s.takeTurn(ctx) != nil {
		return
	}
	s.running = true
	s.endTurn()
	defer func() {
		s.turn <- struct{}{}
		s.running = false
		s.endTurn()
	}()
	var listening sync.WaitGroup
	defer listening.Wait()
	listening.Go(func() { s.listen(ctx) })

	pauses, due := s.pauses(), time.NewTimer(0)
	defer due.Stop()
	var rested time.Time // before, messages can't ask for another read
	for behind, failing := true, false; ; {
		select {
		case <-ctx.Done():
			return
		case <-due.C:
			behind = true
		case <-s.inbox.filled:
			if !wait.For(ctx, time.Until(rested)) {
				return
			}
		}
		m := s.inbox.takeAll()
		s.tellResets(m)
		behind = behind || m.all
		if !behind && len(m.targets) == 0 {
			continue
		}
		began := time.Now()
		err := s.read(ctx, behind, m.targets)
		rested = time.Now().Add(min(3*time.Since(began), longestRest))
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if !failing {
				s.o.OnState(err)
			}
			behind, failing = true, true
			s.reroute(ctx)
			due.Reset(pauses.NextBackOff())
			continue
		case failing:
			s.o.OnState(nil)
			failing = false
			pauses.Reset()
		}
		if behind {
			behind = false
			due.Reset(jittered(s.o.Resync))
		}
	}
}

// longestRest is the most by which a storm of messages is slowed down: reading and
// applying take a quarter of the time.
const longestRest = 300 * time.Millisecond

func (s *Store) tellResets(m messages) {
	for _, counter := range m.resets {
		s.o.OnReset(counter)
	}
	if m.missed {
		s.o.OnGap()
	}
}

// reroute makes a client of a Cluster look for who has the hash now. By itself it
// does so only when a node sends it elsewhere, which a dead one doesn't.
func (s *Store) reroute(ctx context.Context) {
	if c, ok := s.o.Client.(interface{ ReloadState(context.Context) }); ok {
		c.ReloadState(ctx)
	}
}

// pauses space attempts while Redis fails.
func (s *Store) pauses() *backoff.ExponentialBackOff {
	b := &backoff.ExponentialBackOff{
		InitialInterval:     min(100*time.Millisecond, s.o.Resync),
		MaxInterval:         min(5*time.Second, s.o.Resync),
		RandomizationFactor: 0.2,
		Multiplier:          2,
	}
	b.Reset()
	return b
}

// jittered is d, or up to a fifth less, so that replicas that start together don't
// stay so.
func jittered(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.2*rand.Float64()))
}

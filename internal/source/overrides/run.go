package overrides

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/source"
)

// Run implements source.Source. It must not run twice at a time.
func (s *Store) Run(ctx context.Context, apply func(source.Update) error) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	s.apply = apply
	s.unlock()
	defer func() {
		s.mutex <- struct{}{}
		s.apply = nil
		s.unlock()
	}()
	var background sync.WaitGroup
	defer background.Wait()
	background.Go(func() { s.follow(ctx) })
	background.Go(func() { s.reportAll(ctx) })

	retry, resync := s.startBackoff(), time.NewTimer(0)
	defer resync.Stop()
	var nextRead time.Time // messages cause no earlier read
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-resync.C:
		case <-s.readRequests:
			if !wait.Sleep(ctx, time.Until(nextRead)) {
				return ctx.Err()
			}
		}
		began := time.Now()
		err := s.lock(ctx)
		if err == nil {
			err = s.readAll(ctx)
			s.unlock()
		}
		nextRead = time.Now().Add(min(3*time.Since(began), maxRest))
		if err == nil {
			retry.Reset()
			// Shortened at random, so that replicas that start together don't read together.
			resync.Reset(time.Duration(float64(s.options.Resync) * (0.8 + 0.2*rand.Float64())))
			continue
		}
		// A client of a Cluster looks for the node that has the hash only after a redirect,
		// and a dead node doesn't send one.
		if c, ok := s.options.Client.(interface{ ReloadState(context.Context) }); ok {
			c.ReloadState(ctx)
		}
		resync.Reset(retry.NextBackOff())
	}
}

// maxRest bounds the time between two reads that messages cause. Within the bound,
// reading and applying take a quarter of the time.
const maxRest = 300 * time.Millisecond

// startBackoff returns the pauses between attempts while Redis fails.
func (s *Store) startBackoff() *backoff.ExponentialBackOff {
	resync := s.options.Resync
	return wait.Backoff{Initial: min(100*time.Millisecond, resync), Max: min(5*time.Second, resync), Jitter: 0.2}.Start()
}

package overrides

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	goredis "github.com/redis/go-redis/v9"

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
		// A client of a Cluster looks for the node of the hash only after a redirect of a living node.
		if c, ok := s.options.Client.(interface{ ReloadState(context.Context) }); ok {
			c.ReloadState(ctx)
		}
		resync.Reset(retry.NextBackOff())
	}
}

// maxRest bounds the time between two reads that messages cause, so that they take a quarter of the time.
const maxRest = 300 * time.Millisecond

func (s *Store) startBackoff() *backoff.ExponentialBackOff {
	resync := s.options.Resync
	return wait.Backoff{Initial: min(100*time.Millisecond, resync), Max: min(5*time.Second, resync), Jitter: 0.2}.Start()
}

// follow reports the messages of all replicas until ctx is done. It renews a failed subscription.
func (s *Store) follow(ctx context.Context) {
	retry := s.startBackoff()
	for lost := false; ; {
		subscribed, err := s.subscribe(ctx)
		if ctx.Err() != nil {
			return
		}
		if subscribed {
			retry.Reset()
			lost = false
		}
		if !lost {
			lost = true
			s.options.Log.Warn("override subscription lost; overrides are read at each interval", "interval", s.options.Resync, "error", err)
			s.requestRead() // Redis may be down for reads as well
		}
		if !wait.Sleep(ctx, retry.NextBackOff()) {
			return
		}
	}
}

// A subscription gets a ping after each half of Options.Resync, within these bounds. It is closed if Redis sends
// nothing for twice as long.
const (
	minPingInterval = 250 * time.Millisecond
	maxPingInterval = 5 * time.Second
)

func pingInterval(resync time.Duration) time.Duration {
	return min(max(resync/2, minPingInterval), maxPingInterval)
}

// subscribe reports messages until the subscription fails. subscribed reports whether there was one.
func (s *Store) subscribe(ctx context.Context) (subscribed bool, err error) {
	sub := s.options.Client.Subscribe(ctx) // to nothing: it can't fail
	interval := pingInterval(s.options.Resync)
	ctx, stop := context.WithCancel(ctx)
	var pinging sync.WaitGroup
	pinging.Go(func() {
		for wait.Sleep(ctx, interval) {
			_ = sub.Ping(ctx) // a failure ends ReceiveTimeout
		}
		_ = sub.Close()
	})
	defer pinging.Wait()
	defer stop()
	if err := sub.Subscribe(ctx, s.hash, s.resets); err != nil {
		return false, err
	}
	for {
		reply, err := sub.ReceiveTimeout(ctx, 2*interval)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = errors.New("the connection was silent for too long")
		}
		if err != nil {
			return subscribed, err
		}
		switch m := reply.(type) {
		case *goredis.Subscription:
			if bothChannels := 2; m.Count == bothChannels {
				subscribed = true
				s.options.OnMissedResets()
				s.requestRead()
			}
		case *goredis.Message:
			if m.Channel == s.resets {
				s.options.OnReset(m.Payload)
			} else {
				s.requestRead()
			}
		}
	}
}

func (s *Store) requestRead() { wait.Signal(s.readRequests) }

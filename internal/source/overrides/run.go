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

// Run implements source.Source. Only one call of Run may be running.
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
	var goroutines sync.WaitGroup
	defer goroutines.Wait()
	goroutines.Go(func() { s.followMessages(ctx) })
	goroutines.Go(func() { s.reportReplica(ctx) })

	retry, resyncTimer := s.startBackoff(), time.NewTimer(0)
	defer resyncTimer.Stop()
	var earliestRead time.Time // a message causes no read before this time
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-resyncTimer.C:
		case <-s.readRequests:
			if !wait.Sleep(ctx, time.Until(earliestRead)) {
				return ctx.Err()
			}
		}
		start := time.Now()
		err := s.lock(ctx)
		if err == nil {
			err = s.readAll(ctx)
			s.unlock()
		}
		earliestRead = time.Now().Add(min(3*time.Since(start), maxReadPause))
		if err == nil {
			retry.Reset()
			// A random interval keeps replicas that start together from reading together.
			resyncTimer.Reset(time.Duration(float64(s.options.Resync) * (0.8 + 0.2*rand.Float64())))
			continue
		}
		// A client of a Cluster learns the new node of the hash only if the old node answers. So reload the nodes here.
		if c, ok := s.options.Client.(interface{ ReloadState(context.Context) }); ok {
			c.ReloadState(ctx)
		}
		resyncTimer.Reset(retry.NextBackOff())
	}
}

// maxReadPause bounds the pause before a read that a message causes. A shorter pause is three times the duration of the
// last read, so such reads take a quarter of the time.
const maxReadPause = 300 * time.Millisecond

func (s *Store) startBackoff() *backoff.ExponentialBackOff {
	resync := s.options.Resync
	return wait.Backoff{Initial: min(100*time.Millisecond, resync), Max: min(5*time.Second, resync), Jitter: 0.2}.Start()
}

func (s *Store) followMessages(ctx context.Context) {
	retry := s.startBackoff()
	for isLost := false; ; {
		wasSubscribed, err := s.subscribe(ctx)
		if ctx.Err() != nil {
			return
		}
		if wasSubscribed {
			retry.Reset()
			isLost = false
		}
		if !isLost {
			isLost = true
			s.options.Log.Warn("override subscription lost; overrides are read at each interval", "interval", s.options.Resync, "error", err)
			s.requestRead() // if Redis is down, the read reports an outage
		}
		if !wait.Sleep(ctx, retry.NextBackOff()) {
			return
		}
	}
}

// The store sends a ping over the subscription after each half of Options.Resync, within these bounds. If Redis sends
// nothing for two such intervals, the store closes the subscription.
const (
	minPingInterval = 250 * time.Millisecond
	maxPingInterval = 5 * time.Second
)

func pingInterval(resync time.Duration) time.Duration {
	return min(max(resync/2, minPingInterval), maxPingInterval)
}

// subscribe handles messages until the subscription fails. wasSubscribed reports whether Redis confirmed the
// subscription.
func (s *Store) subscribe(ctx context.Context) (wasSubscribed bool, err error) {
	subscription := s.options.Client.Subscribe(ctx) // without a channel, this call sends nothing and can't fail
	interval := pingInterval(s.options.Resync)
	ctx, stop := context.WithCancel(ctx)
	var pinger sync.WaitGroup
	pinger.Go(func() {
		for wait.Sleep(ctx, interval) {
			_ = subscription.Ping(ctx) // after a failed ping, ReceiveTimeout returns an error too
		}
		_ = subscription.Close()
	})
	defer pinger.Wait()
	defer stop()
	if err := subscription.Subscribe(ctx, s.hash, s.resetsChannel); err != nil {
		return false, err
	}
	for {
		reply, err := subscription.ReceiveTimeout(ctx, 2*interval)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = errors.New("the connection was silent for too long")
		}
		if err != nil {
			return wasSubscribed, err
		}
		switch m := reply.(type) {
		case *goredis.Subscription:
			if bothChannels := 2; m.Count == bothChannels {
				wasSubscribed = true
				s.options.OnMissedResets()
				s.requestRead()
			}
		case *goredis.Message:
			if m.Channel == s.resetsChannel {
				s.options.OnReset(m.Payload)
			} else {
				s.requestRead()
			}
		}
	}
}

func (s *Store) requestRead() { wait.Signal(s.readRequests) }

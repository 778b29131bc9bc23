package overrides

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/internal/base/wait"
)

// follow reports the messages of all replicas until ctx is done: it requests full reads
// and calls OnReset and OnMissedResets. It renews the subscription whenever that fails.
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

// A subscription gets a ping after each half of Options.Resync, within these bounds. It
// is closed if Redis sends nothing for twice as long.
const (
	minPingInterval = 250 * time.Millisecond
	maxPingInterval = 5 * time.Second
)

func pingInterval(resync time.Duration) time.Duration {
	return min(max(resync/2, minPingInterval), maxPingInterval)
}

// subscribe reports messages until the subscription fails. subscribed reports whether
// there was one before.
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

// requestRead makes Run read all overrides soon.
func (s *Store) requestRead() {
	select {
	case s.readRequests <- struct{}{}:
	default: // Run is already notified
	}
}

package overrides

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/internal/wait"
)

// follow adds the messages of all replicas to s.pending until ctx is done. It renews the
// subscription whenever that fails.
func (s *Store) follow(ctx context.Context) {
	retry := s.retryBackoff()
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
			s.options.Log.Warn("override subscription lost; polling", "interval", s.options.Resync, "error", err)
			s.pending.addRead() // Redis may be down for reads as well
		}
		if !wait.For(ctx, retry.NextBackOff()) {
			return
		}
	}
}

// subscribe adds messages to s.pending until the subscription fails. subscribed reports
// whether there was one before.
func (s *Store) subscribe(ctx context.Context) (subscribed bool, err error) {
	sub := s.options.Client.Subscribe(ctx) // to nothing: it can't fail
	var monitor silenceMonitor
	ctx, stop := context.WithCancel(ctx)
	var monitoring sync.WaitGroup
	monitoring.Go(func() { monitor.run(ctx, sub, min(max(s.options.Resync/2, minSilence), maxSilence)) })
	defer monitoring.Wait()
	defer stop()
	if err := sub.Subscribe(ctx, s.hash, s.resets); err != nil {
		return false, err
	}
	for {
		// No deadline: it could cut a message in two.
		reply, err := sub.Receive(ctx)
		if err != nil {
			if monitor.expired.Load() {
				err = errSilent
			}
			return subscribed, err
		}
		monitor.replies.Add(1)
		switch m := reply.(type) {
		case *goredis.Subscription:
			if bothChannels := 2; m.Count == bothChannels {
				subscribed = true
				s.pending.addMissed()
			}
		case *goredis.Message:
			if m.Channel == s.resets {
				s.pending.addReset(m.Payload)
			} else {
				s.pending.addRead()
			}
		}
	}
}

// A subscription that is silent for half of Options.Resync, within these bounds, gets a
// ping. It is closed if it stays silent for as long again.
const (
	minSilence = 250 * time.Millisecond
	maxSilence = 5 * time.Second
)

// silenceMonitor closes a subscription whose connection is dead.
type silenceMonitor struct {
	replies atomic.Int64 // received so far
	expired atomic.Bool  // the subscription was closed because of silence
}

// run monitors sub until ctx is done, and closes it.
func (m *silenceMonitor) run(ctx context.Context, sub *goredis.PubSub, silence time.Duration) {
	defer func() { _ = sub.Close() }()
	tick := time.NewTicker(silence)
	defer tick.Stop()
	pinged := false
	for last := int64(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		replies := m.replies.Load()
		switch {
		case replies != last:
			last, pinged = replies, false
		case pinged:
			m.expired.Store(true)
			return
		default:
			pinged = true
			if sub.Ping(ctx) != nil {
				return
			}
		}
	}
}

package overrides

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/internal/wait"
)

// listen fills the inbox with what messages say until ctx is done.
func (s *Store) listen(ctx context.Context) {
	pauses := s.pauses()
	for deaf := false; ; {
		heard, err := s.subscribe(ctx)
		if ctx.Err() != nil {
			return
		}
		if heard {
			pauses.Reset()
			deaf = false
		}
		if !deaf {
			s.o.Log.Warn("overrides: no messages from Redis; changes are found by reading until there are", "every", s.o.Resync, "error", err)
			deaf = true
			s.inbox.reload() // what could break that line may have broken all
		}
		if !wait.For(ctx, pauses.NextBackOff()) {
			return
		}
	}
}

// subscribe listens until that fails. heard tells whether it was subscribed before.
func (s *Store) subscribe(ctx context.Context) (heard bool, err error) {
	sub := s.o.Client.Subscribe(ctx) // to nothing, as that can't fail
	var alive line
	ctx, stop := context.WithCancel(ctx)
	var guarding sync.WaitGroup
	guarding.Go(func() { alive.guard(ctx, sub, min(max(s.o.Resync/2, minSilence), maxSilence)) })
	defer guarding.Wait()
	defer stop()
	if err := sub.Subscribe(ctx, s.hash, s.resets); err != nil {
		return false, err
	}
	for {
		// Without a deadline: one in the middle of a message would lose its rest.
		received, err := sub.Receive(ctx)
		if err != nil {
			if alive.silent.Load() {
				err = errSilent
			}
			return heard, err
		}
		alive.received.Add(1)
		switch m := received.(type) {
		case *goredis.Subscription:
			if m.Count == 2 { // both
				heard = true
				s.inbox.miss()
			}
		case *goredis.Message:
			switch {
			case m.Channel == s.resets:
				s.inbox.reset(m.Payload)
			case m.Payload == ReloadAll:
				s.inbox.reload()
			default:
				s.inbox.changed(m.Payload)
			}
		}
	}
}

// Half a Resync, but within these, is how long a subscription can be silent before it
// is asked for a sign of life. After as long again without one it is given up.
const (
	minSilence = 250 * time.Millisecond
	maxSilence = 5 * time.Second
)

// line is the connection of a subscription.
type line struct {
	received atomic.Int64 // replies, so far
	silent   atomic.Bool  // it was given up
}

// guard closes sub when it is silent for too long, or ctx is done.
func (l *line) guard(ctx context.Context, sub *goredis.PubSub, silence time.Duration) {
	defer func() { _ = sub.Close() }()
	tick := time.NewTicker(silence)
	defer tick.Stop()
	asked := false
	for before := int64(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		received := l.received.Load()
		switch {
		case received != before:
			before, asked = received, false
		case asked:
			l.silent.Store(true)
			return
		default:
			asked = true
			if sub.Ping(ctx) != nil {
				return
			}
		}
	}
}

var errSilent = errors.New("the connection was silent for too long")

// Package overrides keeps a map of texts in step with a hash in Redis that all
// replicas share, and tells of every change. It is for limits that are overridden at
// run time, but what the texts mean is its user's affair.
//
// Terms:
//
//   - target, value: a field of the hash <prefix>rls:overrides and its text;
//   - message: on the channel of the hash's name, a target that was changed, or
//     RELOAD_ALL; on <prefix>rls:resets, a counter that was reset;
//   - full read: of the whole hash. Messages can get lost, so there is one after each
//     subscription and at each Resync, come what may.
package overrides

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/internal/wait"
)

// ReloadAll is the message that makes all replicas read everything again.
const ReloadAll = "RELOAD_ALL"

// What is refused, in bytes.
const (
	MaxTarget  = 4 << 10
	MaxValue   = 64 << 10
	MaxCounter = 64 << 10
)

// expectedFields is how many there can be without a word in the log.
const expectedFields = 10_000

// Options of a Store. Functions that are nil are not called. None may call the Store.
type Options struct {
	// Client is of the Redis that holds the overrides. Its timeouts bound all that is
	// asked of Redis. It stays the caller's.
	Client goredis.UniversalClient

	// Prefix starts the names of the hash and the channels.
	Prefix string

	// Resync is how often everything is read again, at least; 30 s by default.
	Resync time.Duration

	// Apply is told all there is, whenever that has changed, and at first even if
	// there is nothing. One goroutine at a time calls it: Run's, or that of a Put or
	// Delete. It must neither change nor keep the map.
	Apply func(all map[string]string)

	// Expired tells which values are over at now. A full read removes those from Redis
	// that are so by this process' clock and that of Redis.
	Expired func(value string, now time.Time) bool

	// OnReset is told each counter in a message of TellReset, this replica's too.
	OnReset func(counter string)

	// OnGap is told that messages of TellReset may have been missed: whenever there is
	// a subscription where there was none.
	OnGap func()

	// OnState is told, once, why Redis can't be read; what was read before holds on.
	// It is told nil when Redis can be read again.
	OnState func(err error)

	// Log is told what is amiss although overrides can be read; never a value.
	Log *slog.Logger
}

// Store is the map and its hash. It is safe for concurrent use.
type Store struct {
	o             Options
	hash, resets  string // names in Redis; hash is a channel's too
	inbox         *inbox
	turn          chan struct{} // holds something while a goroutine uses what follows
	running       bool
	known         map[string]string // what Apply was told; nil if nothing yet
	crowded       bool              // there are more than expectedFields, and the log says so
	expiredRemain bool              // they can't be removed, and the log says so
}

// New makes a Store. It asks nothing of Redis.
func New(o Options) *Store {
	if o.Resync <= 0 {
		o.Resync = 30 * time.Second
	}
	if o.Apply == nil {
		o.Apply = func(map[string]string) {}
	}
	if o.Expired == nil {
		o.Expired = func(string, time.Time) bool { return false }
	}
	if o.OnReset == nil {
		o.OnReset = func(string) {}
	}
	if o.OnGap == nil {
		o.OnGap = func() {}
	}
	if o.OnState == nil {
		o.OnState = func(error) {}
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Store{
		o: o, hash: o.Prefix + "rls:overrides", resets: o.Prefix + "rls:resets",
		inbox: newInbox(), turn: make(chan struct{}, 1),
	}
}

// Put sets the value of target and tells all replicas. It returns what it was
// before, if there was one. If Run is running, Apply has been told.
//
// The error says that Redis refused or could not be asked. If it broke off, the value
// can be set all the same, as Apply will be told.
func (s *Store) Put(ctx context.Context, target, value string) (old string, had bool, err error) {
	if len(target) > MaxTarget {
		return "", false, fmt.Errorf("the target of the override has %d bytes; it can have at most %d", len(target), MaxTarget)
	}
	if len(value) > MaxValue {
		return "", false, fmt.Errorf("the override has %d bytes; it can have at most %d", len(value), MaxValue)
	}
	return s.write(ctx, target, &value)
}

// Delete removes target; for the rest it is as Put.
func (s *Store) Delete(ctx context.Context, target string) (old string, had bool, err error) {
	return s.write(ctx, target, nil)
}

// TellReset tells all replicas that a counter was reset.
func (s *Store) TellReset(ctx context.Context, counter string) error {
	if len(counter) > MaxCounter {
		return fmt.Errorf("the name of the counter has %d bytes; it can have at most %d", len(counter), MaxCounter)
	}
	if err := s.publish(ctx, s.resets, counter); err != nil {
		return fmt.Errorf("tell the other replicas of a reset: %w", err)
	}
	return nil
}

// write makes value that of target, nil meaning none. The turn is kept until Apply
// is told, so that what was read before can't be told after it.
func (s *Store) write(ctx context.Context, target string, value *string) (old string, had bool, err error) {
	if err := s.takeTurn(ctx); err != nil {
		return "", false, fmt.Errorf("write an override: %w", err)
	}
	if old, had, err = s.exchange(ctx, target, value); err == nil && s.running {
		s.applyOwn(ctx, target, value)
	}
	s.endTurn()
	if err != nil {
		s.inbox.changed(target) // perhaps
		return "", false, s.explain("write an override", err)
	}
	if err := s.publish(ctx, s.hash, target); err != nil {
		s.o.Log.Warn("override written, but other replicas can't be told; they will find it by themselves", "within", s.o.Resync, "error", err)
	}
	return old, had, nil
}

// exchange is write in Redis, in one step.
func (s *Store) exchange(ctx context.Context, target string, value *string) (old string, had bool, err error) {
	var get *goredis.StringCmd
	var set *goredis.IntCmd
	_, err = s.o.Client.TxPipelined(ctx, func(p goredis.Pipeliner) error {
		get = p.HGet(ctx, s.hash, target)
		if value == nil {
			set = p.HDel(ctx, s.hash, target)
		} else {
			set = p.HSet(ctx, s.hash, target, *value)
		}
		return nil
	})
	for _, why := range []error{set.Err(), get.Err(), err} {
		// That it was aborted is said of what was not refused itself.
		if why != nil && !errors.Is(why, goredis.Nil) && !goredis.HasErrorPrefix(why, "EXECABORT") {
			return "", false, why
		}
	}
	if err != nil && !errors.Is(err, goredis.Nil) {
		return "", false, err
	}
	if old, err = get.Result(); errors.Is(err, goredis.Nil) {
		return "", false, nil
	}
	return old, err == nil, err
}

const (
	publishTries  = 3
	publishWithin = 2 * time.Second
)

// publish tries to, for a short while.
func (s *Store) publish(ctx context.Context, channel, message string) error {
	ctx, cancel := context.WithTimeout(ctx, publishWithin)
	defer cancel()
	for try := 1; ; try++ {
		err := s.o.Client.Publish(ctx, channel, message).Err()
		if err == nil || try == publishTries || !wait.For(ctx, 50*time.Millisecond) {
			return err
		}
	}
}

// takeTurn waits until no other goroutine has the turn, or returns ctx's error.
func (s *Store) takeTurn(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Store) endTurn() { <-s.turn }

// explain says of an error of Redis what was tried, and what there is to do.
func (s *Store) explain(tried string, err error) error {
	if goredis.HasErrorPrefix(err, "WRONGTYPE") {
		return fmt.Errorf("%s: the key %s in Redis should be a hash but holds something else; delete it or choose another prefix: %w", tried, s.hash, err)
	}
	return fmt.Errorf("%s: %w", tried, err)
}

// Package overrides is the source of overrides. It mirrors a hash in Redis that all
// replicas share. The package doesn't interpret the overrides.
//
// Terms:
//
//   - target, value: a field of the hash <prefix>rls:overrides and its content;
//   - message: on the channel with the hash's name, a target that was changed; on
//     <prefix>rls:resets, a counter that was reset;
//   - full read: HGETALL of the hash, after each message, each subscription and each
//     resync interval, because messages can get lost.
package overrides

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/internal/wait"
	"github.com/seed-81f232ab/rls/source"
)

// Bounds of what a Store accepts, in bytes.
const (
	MaxTarget  = 4 << 10
	MaxValue   = 64 << 10
	MaxCounter = 64 << 10
)

// maxExpected is the number of overrides above which the log has a warning.
const maxExpected = 10_000

// Options configure a Store. A nil function is not called. No function may call the
// Store.
type Options struct {
	// Client is of the Redis that has the overrides. Its timeouts bound each command.
	// The caller closes it.
	Client goredis.UniversalClient

	// Prefix starts the names of the hash and the channels.
	Prefix string

	// Resync is the interval of full reads; 30 s by default.
	Resync time.Duration

	// Expired reports whether value has expired at now. A full read deletes values
	// that have expired by the clocks of this process and of Redis.
	Expired func(value string, now time.Time) bool

	// OnReset gets each counter that any replica passes to PublishReset.
	OnReset func(counter string)

	// OnMissedResets reports that resets may have been missed, as there was no
	// subscription for a while.
	OnMissedResets func()

	// Log gets problems and their end. It never gets a value. It may be nil.
	Log *slog.Logger
}

// Store is the source of overrides and changes them. It is safe for concurrent use.
type Store struct {
	options       Options
	hash, resets  string // names in Redis; hash is also a channel
	pending       *pending
	mutex         chan struct{}             // full while a goroutine uses the fields below
	apply         func(source.Update) error // nil while Run isn't running
	applied       map[string]string         // last; nil if nothing was. Never changed, only replaced
	outage        error                     // why Redis can't be read, as applied last
	warnedMany    bool                      // the log has the warning of maxExpected
	warnedExpired bool                      // the log has the warning about expired overrides
}

var _ source.Source = (*Store)(nil)

// New returns a Store. It sends nothing to Redis.
func New(o Options) *Store {
	if o.Resync <= 0 {
		o.Resync = 30 * time.Second
	}
	if o.Expired == nil {
		o.Expired = func(string, time.Time) bool { return false }
	}
	if o.OnReset == nil {
		o.OnReset = func(string) {}
	}
	if o.OnMissedResets == nil {
		o.OnMissedResets = func() {}
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Store{
		options: o, hash: o.Prefix + "rls:overrides", resets: o.Prefix + "rls:resets",
		pending: newPending(), mutex: make(chan struct{}, 1),
	}
}

// Put sets the value of target and notifies all replicas, in one atomic step. It returns
// the previous value and whether there was one. If Run is running, the change is applied
// when Put returns.
//
// After an error from a broken connection the value may be set all the same. Run finds
// out.
func (s *Store) Put(ctx context.Context, target, value string) (old string, existed bool, err error) {
	if len(target) > MaxTarget {
		return "", false, fmt.Errorf("target of the override is %d bytes; maximum is %d", len(target), MaxTarget)
	}
	if len(value) > MaxValue {
		return "", false, fmt.Errorf("override is %d bytes; maximum is %d", len(value), MaxValue)
	}
	return s.write(ctx, target, &value)
}

// Delete removes target. Otherwise it is like Put.
func (s *Store) Delete(ctx context.Context, target string) (old string, existed bool, err error) {
	return s.write(ctx, target, nil)
}

// writeScript sets or deletes one override, notifies all replicas and returns the
// previous value. It succeeds if the user may not publish: replicas find the change by
// full reads.
//
// KEYS: the hash. ARGV: channel, target, value; without value the target is deleted.
// Reply: the previous value or nil, the error of PUBLISH or an empty string.
var writeScript = goredis.NewScript(`
local old = redis.call('HGET', KEYS[1], ARGV[2])
if ARGV[3] then
  redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
else
  redis.call('HDEL', KEYS[1], ARGV[2])
end
local published = redis.pcall('PUBLISH', ARGV[1], ARGV[2])
return {old, type(published) == 'table' and published.err or ''}
`)

// write sets target to value, or deletes it if value is nil. It holds the mutex until the
// change is applied, so that no older full read is applied after it.
func (s *Store) write(ctx context.Context, target string, value *string) (old string, existed bool, err error) {
	if err := s.lock(ctx); err != nil {
		return "", false, fmt.Errorf("write an override: %w", err)
	}
	defer s.unlock()
	args := []any{s.hash, target}
	if value != nil {
		args = append(args, *value)
	}
	reply, err := writeScript.Run(ctx, s.options.Client, []string{s.hash}, args...).Slice()
	if err != nil {
		s.pending.addRead() // it may be written
		return "", false, s.explain("write an override", err)
	}
	if problem, _ := reply[1].(string); problem != "" {
		s.options.Log.Warn("override written; other replicas not notified", "found_within", s.options.Resync, "error", problem)
	}
	s.applyWrite(ctx, target, value)
	old, existed = reply[0].(string)
	return old, existed, nil
}

// applyWrite applies what write has written. The caller holds the mutex.
func (s *Store) applyWrite(ctx context.Context, target string, value *string) {
	switch {
	case s.apply == nil:
		return
	case s.applied == nil:
		_ = s.readAll(ctx) // Run retries if this fails
		return
	}
	all := maps.Clone(s.applied)
	delete(all, target)
	if value != nil {
		all[target] = *value
	}
	if !maps.Equal(s.applied, all) {
		s.applied = all
		_ = s.apply(source.Update{Overrides: all, Outage: s.outage})
	}
}

// PublishReset notifies all replicas that a counter was reset.
func (s *Store) PublishReset(ctx context.Context, counter string) error {
	const (
		tries  = 3
		within = 2 * time.Second
	)
	if len(counter) > MaxCounter {
		return fmt.Errorf("name of the counter is %d bytes; maximum is %d", len(counter), MaxCounter)
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for try := 1; ; try++ {
		err := s.options.Client.Publish(ctx, s.resets, counter).Err()
		switch {
		case err == nil:
			return nil
		case try == tries, !wait.For(ctx, 50*time.Millisecond):
			return fmt.Errorf("publish a reset: %w", err)
		}
	}
}

// readAll reads all overrides and applies them if they have changed. The caller holds the mutex.
func (s *Store) readAll(ctx context.Context) error {
	all, err := s.options.Client.HGetAll(ctx, s.hash).Result()
	if err != nil {
		err = s.explain("read all overrides", err)
		if s.outage == nil && ctx.Err() == nil {
			s.outage = err
			s.options.Log.Error("overrides can't be read; the last ones stay in force", "error", err)
			_ = s.apply(source.Update{Outage: err})
		}
		return err
	}
	s.deleteExpired(ctx, all)
	if many := len(all) > maxExpected; many != s.warnedMany {
		if s.warnedMany = many; many {
			s.options.Log.Warn("many overrides; each full read costs time and memory", "overrides", len(all), "expected", maxExpected)
		}
	}
	var u source.Update
	if s.applied == nil || !maps.Equal(s.applied, all) {
		s.applied, u.Overrides = all, all
	}
	if s.outage != nil {
		s.options.Log.Info("overrides can be read again")
	}
	if u.Overrides != nil || s.outage != nil {
		s.outage = nil
		_ = s.apply(u)
	}
	return nil
}

// deleteScript deletes the targets that still have the given values.
//
// KEYS: the hash. ARGV: target, value, target, value and so on. Reply: OK.
var deleteScript = goredis.NewScript(`
for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return redis.status_reply('OK')
`)

// deleteExpired deletes the expired values in all, from all and from Redis. A value
// counts as expired if it has expired by the clocks of this process and of Redis, so that
// a replica whose clock is ahead deletes nothing early. A target that got a new value in
// the meantime keeps the new value.
func (s *Store) deleteExpired(ctx context.Context, all map[string]string) {
	const maxBatch = 1000 // a larger one would block Redis for too long
	expired := s.expired(all, time.Now())
	if len(expired) == 0 {
		return
	}
	now, err := s.options.Client.Time(ctx).Result()
	if err == nil {
		expired = s.expired(expired, now)
		var args []any
		for target, value := range expired {
			if args = append(args, target, value); len(args) == 2*maxBatch {
				break
			}
		}
		if len(args) == 0 {
			return
		}
		err = deleteScript.Run(ctx, s.options.Client, []string{s.hash}, args...).Err()
	}
	if err == nil {
		s.warnedExpired = false
		maps.DeleteFunc(all, func(target, _ string) bool { _, gone := expired[target]; return gone })
	} else if ctx.Err() == nil && !s.warnedExpired {
		s.warnedExpired = true
		s.options.Log.Warn("expired overrides not deleted from Redis", "error", err)
	}
}

// expired returns the part of all that has expired at now.
func (s *Store) expired(all map[string]string, now time.Time) map[string]string {
	expired := map[string]string{}
	for target, value := range all {
		if s.options.Expired(value, now) {
			expired[target] = value
		}
	}
	return expired
}

// lock locks the mutex, or returns the error of ctx if that is done first.
func (s *Store) lock(ctx context.Context) error {
	select {
	case s.mutex <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Store) unlock() { <-s.mutex }

// explain wraps an error of Redis with the operation and the remedy.
func (s *Store) explain(operation string, err error) error {
	// Redis before 7 puts the code of a script's error into the middle of the text.
	if strings.Contains(err.Error(), "WRONGTYPE") {
		return fmt.Errorf("%s: the key %s in Redis has another type, want a hash; delete it or choose another prefix: %w", operation, s.hash, err)
	}
	return fmt.Errorf("%s: %w", operation, err)
}

var errSilent = errors.New("the connection was silent for too long")

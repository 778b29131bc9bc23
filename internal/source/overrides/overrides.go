// Package overrides is the source of overrides, and of the rules and switches of run time, in a hash in Redis that
// all replicas share. It doesn't interpret the values.
//
// Terms:
//
// - message: a changed field, on the channel that has the hash's name, or a reset counter;
// - full read: HGETALL of the hash, after each message, each subscription and each resync interval, because
// messages can get lost.
package overrides

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/internal/source"
	"github.com/seed-81f232ab/rls/internal/source/changes"
)

// Options configure a Store. Only Prefix and Report are optional. No function may call the Store.
type Options struct {
	// Client connects to the Redis of the overrides. Its timeouts bound each command.
	Client goredis.UniversalClient

	// Prefix starts the names of the hash and the channels.
	Prefix string

	// Resync is the interval of full reads.
	Resync time.Duration

	// Expired reports whether value has expired at now. A full read deletes such values.
	Expired func(value string, now time.Time) bool

	// Report returns the report of this replica, without its version, or is nil for no report.
	Report func() changes.Replica

	// OnReset gets each counter that any replica passes to PublishReset.
	OnReset func(counter string)

	// OnMissedResets reports that resets may have been missed.
	OnMissedResets func()

	// Log gets problems and their end. It never gets a value.
	Log *slog.Logger
}

// Store is the source of overrides and changes them. It is safe for concurrent use.
type Store struct {
	options      Options
	hash, resets string        // names in Redis; hash is also a channel
	history      string        // the name of the list
	limitsList   string        // the name of the list with the versions of the limits
	replicas     string        // the name of the hash with the reports of replicas
	readRequests chan struct{} // has an element if Run should read soon

	reportRequests chan struct{} // has an element if Run should report this replica soon

	mutex         chan struct{}             // full while a goroutine uses the fields below
	apply         func(source.Update) error // nil while Run isn't running
	applied       map[string]string         // the values that apply got last, or nil; the map is never modified
	version       atomic.Int64              // of the last change that was read or made
	outage        error                     // why Redis can't be read, as last passed to apply; nil if it can
	warnedExpired bool                      // the log has the warning about expired overrides
}

var _ source.Source = (*Store)(nil)

// New returns a Store. It sends nothing to Redis.
func New(o Options) *Store {
	return &Store{
		options: o, hash: o.Prefix + "rls:overrides", resets: o.Prefix + "rls:resets", history: listName(o.Prefix, "history"), limitsList: listName(o.Prefix, "limits"), replicas: o.Prefix + "rls:replicas",
		readRequests: make(chan struct{}, 1), reportRequests: make(chan struct{}, 1), mutex: make(chan struct{}, 1),
	}
}

// PublishReset notifies all replicas that a counter was reset.
func (s *Store) PublishReset(ctx context.Context, counter string) error {
	if err := s.options.Client.Publish(ctx, s.resets, counter).Err(); err != nil {
		return fmt.Errorf("publish a reset: %w", err)
	}
	return nil
}

// readAll reads all overrides and applies changes. The caller holds the mutex.
func (s *Store) readAll(ctx context.Context) error {
	all, err := s.options.Client.HGetAll(ctx, s.hash).Result()
	if err != nil {
		err = s.explain("read all overrides", err)
		if s.outage == nil && ctx.Err() == nil {
			s.outage = err
			s.options.Log.Error("overrides can't be read; the last overrides stay in force", "error", err)
			_ = s.apply(source.Update{Outage: err})
		}
		return err
	}
	if version, err := strconv.ParseInt(all[changes.VersionField], 10, 64); err == nil {
		s.version.Store(version)
	}
	delete(all, changes.VersionField)
	s.deleteExpired(ctx, all)
	var u source.Update
	if s.applied == nil || !maps.Equal(s.applied, all) {
		s.applied, u.Overrides = all, all
	}
	if s.outage != nil {
		s.options.Log.Info("overrides can be read again")
	}
	s.outage = nil
	_ = s.apply(u)
	if u.Overrides != nil {
		s.requestReport()
	}
	return nil
}

// deleteScript deletes the targets that still have the given values. KEYS: the hash. ARGV: target, value, target,
// value and so on. Reply: OK.
var deleteScript = goredis.NewScript(`
for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return redis.status_reply('OK')
`)

// deleteExpired deletes overrides that have expired by the clocks of this process and of Redis, so that a replica
// whose clock is ahead deletes nothing early. A target with a new value keeps it.
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
		s.options.Log.Warn("expired overrides not deleted from Redis; they stay out of force", "error", err)
	}
}

func (s *Store) expired(all map[string]string, now time.Time) map[string]string {
	expired := map[string]string{}
	for target, value := range all {
		if s.options.Expired(value, now) {
			expired[target] = value
		}
	}
	return expired
}

func (s *Store) lock(ctx context.Context) error {
	select {
	case s.mutex <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Store) unlock() { <-s.mutex }

func (s *Store) explain(operation string, err error) error {
	// Redis before 7 puts the code of a script's error into the middle of the text.
	if strings.Contains(err.Error(), "WRONGTYPE") {
		return fmt.Errorf("%s: the key %s in Redis has another type, want a hash; delete it or choose another prefix: %w", operation, s.hash, err)
	}
	return fmt.Errorf("%s: %w", operation, err)
}

// Package overrides is the source of overrides, and of the rules and switches that are set at run time. Redis keeps all
// of them in one hash that all replicas share. The package doesn't interpret the values.
//
// Terms:
//
// - message: a message in a channel of Redis. A message in the channel with the name of the hash names a field that has
// changed. A message in the channel of resets names a counter that was reset;
// - full read: HGETALL of the hash. A replica makes a full read after each message, after each subscription and at
// each resync interval, because messages can get lost.
package overrides

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/internal/source"
	"github.com/seed-81f232ab/rls/internal/source/changes"
)

// Options configure a Store. Only Prefix and Report are optional. The functions must not call the Store.
type Options struct {
	// Client connects to the Redis of the overrides. Its timeouts bound each command.
	Client goredis.UniversalClient

	// Prefix starts the names of the hash and the channels.
	Prefix string

	// Resync is the interval of full reads.
	Resync time.Duration

	// IsExpired reports whether value has expired at now. A full read deletes expired values.
	IsExpired func(value string, now time.Time) bool

	// Report returns the report of this replica. The Store sets its field Version. If Report is nil, the replica makes
	// no reports.
	Report func() changes.Replica

	// OnReset gets each counter that any replica passes to PublishReset.
	OnReset func(counter string)

	// OnMissedResets is called after each new subscription, because the Store may have missed messages about resets.
	OnMissedResets func()

	// Log gets each problem and the end of the problem. No line has a value of an override.
	Log *slog.Logger
}

// Store is the source of overrides. It also changes overrides. It is safe for concurrent use.
type Store struct {
	options       Options
	hash          string        // the name of the hash, and of the channel for changed fields
	resetsChannel string        // the name of the channel for reset counters
	historyList   string        // the name of the list with the history
	limitsList    string        // the name of the list with the versions of the limits
	reportsHash   string        // the name of the hash with the reports of replicas
	readRequests  chan struct{} // has an element if Run should read soon

	reportRequests chan struct{} // has an element if Run should report this replica soon
	lastReports    atomic.Pointer[changes.Reports]

	mutex              chan struct{}             // has an element while a goroutine uses the fields below
	apply              func(source.Update) error // nil while Run isn't running
	appliedValues      map[string]string         // the values that apply got last, or nil; the map is never modified
	hasLostData        bool                      // Redis has lost changes since the last full read
	version            atomic.Int64              // the version of the last change that was read or made
	outage             error                     // the outage that apply got last; nil if Redis can be read
	hasWarnedOfExpired bool                      // the log has the warning about expired overrides
}

var _ source.Source = (*Store)(nil)

// New returns a Store. It sends nothing to Redis.
func New(o Options) *Store {
	return &Store{
		options: o, hash: o.Prefix + "rls:overrides", resetsChannel: o.Prefix + "rls:resets", historyList: listName(o.Prefix, "history"), limitsList: listName(o.Prefix, "limits"), reportsHash: o.Prefix + "rls:replicas",
		readRequests: make(chan struct{}, 1), reportRequests: make(chan struct{}, 1), mutex: make(chan struct{}, 1),
	}
}

// PublishReset notifies all replicas that a counter was reset.
func (s *Store) PublishReset(ctx context.Context, counter string) error {
	if err := s.options.Client.Publish(ctx, s.resetsChannel, counter).Err(); err != nil {
		return fmt.Errorf("publish a reset: %w", err)
	}
	return nil
}

// readAll reads all overrides and applies changes. The caller holds the mutex.
func (s *Store) readAll(ctx context.Context) error {
	values, err := s.options.Client.HGetAll(ctx, s.hash).Result()
	if err != nil {
		err = s.wrapError("read all overrides", err)
		if s.outage == nil && ctx.Err() == nil {
			s.outage = err
			s.options.Log.Error("overrides can't be read; the last overrides stay in force", "error", err)
			_ = s.apply(source.Update{Outage: err})
		}
		return err
	}
	version, _ := strconv.ParseInt(values[changes.VersionField], 10, 64) // 0 if nobody has made a change
	s.checkForLostData(version)
	s.version.Store(version)
	delete(values, changes.VersionField)
	s.deleteExpiredOverrides(ctx, values)
	var update source.Update
	if s.appliedValues == nil || !maps.Equal(s.appliedValues, values) {
		update.Overrides, update.OverridesLost = values, s.hasLostData
		if s.hasLostData {
			s.options.Log.Error("overrides lost; Redis lost its data", "overrides_before", len(s.appliedValues), "overrides", len(values),
				"lost", lostValues(s.appliedValues, values), "advice", "set them again (docs/operations.md#back-up-and-restore)")
		}
		s.appliedValues = values
	}
	s.hasLostData = false
	if s.outage != nil {
		s.options.Log.Info("overrides can be read again")
	}
	s.outage = nil
	_ = s.apply(update)
	if update.Overrides != nil {
		s.requestReplicaReport()
	}
	return nil
}

const maxLoggedValues = 20

// lostValues lists the overrides of oldValues that newValues lacks, for the log: at most maxLoggedValues targets with values.
func lostValues(oldValues, newValues map[string]string) string {
	var lost []string
	for _, target := range slices.Sorted(maps.Keys(oldValues)) {
		if _, exists := newValues[target]; !exists {
			lost = append(lost, target)
		}
	}
	return fields.JoinFirst(lost, maxLoggedValues, ", ", func(target string) string { return target + " " + oldValues[target] })
}

// checkForLostData sets hasLostData if Redis has lost changes, so that its version is lower than the last version that s
// knows. The caller holds the mutex.
func (s *Store) checkForLostData(versionInRedis int64) {
	s.hasLostData = s.hasLostData || versionInRedis < s.version.Load()
}

// deleteScript deletes each field that still has the value in ARGV. KEYS: the hash. ARGV: fields, each
// followed by its value. Reply: OK.
var deleteScript = goredis.NewScript(`
for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return redis.status_reply('OK')
`)

// deleteExpiredOverrides deletes the overrides that have expired by the clock of this process and by the clock of Redis. So
// it deletes no override too early if the clock of this process is ahead. It keeps a field whose value has changed.
func (s *Store) deleteExpiredOverrides(ctx context.Context, values map[string]string) {
	const maxDeletions = 1000 // more deletions would block Redis for too long
	expiredValues := s.expiredOverrides(values, time.Now())
	if len(expiredValues) == 0 {
		return
	}
	now, err := s.options.Client.Time(ctx).Result()
	if err == nil {
		expiredValues = s.expiredOverrides(expiredValues, now)
		var args []any
		for field, value := range expiredValues {
			if args = append(args, field, value); len(args) == 2*maxDeletions {
				break
			}
		}
		if len(args) == 0 {
			return
		}
		err = deleteScript.Run(ctx, s.options.Client, []string{s.hash}, args...).Err()
	}
	if err == nil {
		s.hasWarnedOfExpired = false
		maps.DeleteFunc(values, func(field, _ string) bool { _, isExpired := expiredValues[field]; return isExpired })
	} else if ctx.Err() == nil && !s.hasWarnedOfExpired {
		s.hasWarnedOfExpired = true
		s.options.Log.Warn("expired overrides not deleted from Redis; they stay out of force", "error", err)
	}
}

func (s *Store) expiredOverrides(overrides map[string]string, now time.Time) map[string]string {
	expiredValues := map[string]string{}
	for field, value := range overrides {
		if s.options.IsExpired(value, now) {
			expiredValues[field] = value
		}
	}
	return expiredValues
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

// wrapError returns err with the operation that failed, and with advice if the key in Redis is no hash.
func (s *Store) wrapError(operation string, err error) error {
	// Redis before 7 writes the code of an error in a script into the middle of the text, so search the whole text.
	if strings.Contains(err.Error(), "WRONGTYPE") {
		return fmt.Errorf("%s: the key %s in Redis has another type, want a hash; delete it or choose another prefix: %w", operation, s.hash, err)
	}
	return fmt.Errorf("%s: %w", operation, err)
}

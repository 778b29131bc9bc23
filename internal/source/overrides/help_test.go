package overrides_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/source"
	"github.com/seed-81f232ab/rls/internal/source/changes"
	"github.com/seed-81f232ab/rls/internal/source/overrides"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, redistest.IgnoreShared()...)
}

const (
	// timeout is enough time on a busy machine.
	timeout = 20 * time.Second

	// noResync is longer than the tests. With noResync, a replica learns of changes only by messages.
	noResync = time.Hour
)

// connect returns a client like the client of rls, but with a long timeout for busy machines.
func connect(tb testing.TB, s redis.Server) goredis.UniversalClient {
	tb.Helper()
	return connectWithin(tb, s, 5*time.Second)
}

func connectWithin(tb testing.TB, s redis.Server, timeout time.Duration) goredis.UniversalClient {
	tb.Helper()
	c, _, err := redis.Connect(s, timeout)
	require.NoError(tb, err)
	tb.Cleanup(func() { c.Close() })
	return c
}

// replica is a Store with the updates, resets and log lines of the Store.
type replica struct {
	*overrides.Store
	tb testing.TB

	mu               sync.Mutex
	appliedOverrides []map[string]string // the overrides of each update
	lost             int                 // the number of updates with OverridesLost
	states           []error             // each change of Update.Outage
	resets           []string
	log              bytes.Buffer
}

func neverExpired(string, time.Time) bool { return false }

// newReplica sets the missing options of o, and returns a replica that does not run.
func newReplica(tb testing.TB, options overrides.Options) *replica {
	r := &replica{tb: tb}
	options.Resync = cmp.Or(options.Resync, 30*time.Second)
	if options.IsExpired == nil {
		options.IsExpired = neverExpired
	}
	if options.OnMissedResets == nil {
		options.OnMissedResets = func() {}
	}
	options.OnReset = func(counter string) { r.withLock(func() { r.resets = append(r.resets, counter) }) }
	options.Log = slog.New(slog.NewTextHandler(r, nil))
	r.Store = overrides.New(options)
	return r
}

func (r *replica) apply(u source.Update) error {
	r.withLock(func() {
		if u.OverridesLost {
			r.lost++
		}
		if u.Overrides != nil {
			r.appliedOverrides = append(r.appliedOverrides, u.Overrides)
		}
		var lastOutage error
		if n := len(r.states); n > 0 {
			lastOutage = r.states[n-1]
		}
		if (u.Outage == nil) != (lastOutage == nil) {
			r.states = append(r.states, u.Outage)
		}
	})
	return nil
}

// startReplica starts a replica that runs until the test ends, and waits for the first read.
func startReplica(tb testing.TB, o overrides.Options) *replica {
	tb.Helper()
	testReplica := newReplica(tb, o)
	testReplica.start()
	testReplica.awaitOverrides(map[string]string{})
	return testReplica
}

// start runs r until the test ends or stop is called.
func (r *replica) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var goroutine sync.WaitGroup
	goroutine.Go(func() { _ = r.Run(ctx, r.apply) })
	stop = func() { cancel(); goroutine.Wait() }
	r.tb.Cleanup(stop)
	return stop
}

func (r *replica) withLock(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// Write implements io.Writer for the log.
func (r *replica) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(p)
}

func (r *replica) logText() (text string) {
	r.withLock(func() { text = r.log.String() })
	return text
}

// currentOverrides returns the overrides that were applied last; nil before the first overrides.
func (r *replica) currentOverrides() (overrides map[string]string) {
	r.withLock(func() {
		if n := len(r.appliedOverrides); n > 0 {
			overrides = r.appliedOverrides[n-1]
		}
	})
	return overrides
}

// applyCount returns the number of times that overrides were applied.
func (r *replica) applyCount() (n int) {
	r.withLock(func() { n = len(r.appliedOverrides) })
	return n
}

// outageChanges returns each error with which r went down, and nil each time that r came up.
func (r *replica) outageChanges() (states []error) {
	r.withLock(func() { states = append(states, r.states...) })
	return states
}

// awaitOverrides waits until the applied overrides are want.
func (r *replica) awaitOverrides(want map[string]string) {
	r.tb.Helper()
	r.await(func() bool { overrides := r.currentOverrides(); return overrides != nil && maps.Equal(overrides, want) })
}

// await waits until f returns true.
func (r *replica) await(f func() bool) {
	r.tb.Helper()
	defer func() {
		if r.tb.Failed() {
			r.tb.Logf("applied last: %v\nstates: %v\nlog: %s", r.currentOverrides(), r.outageChanges(), r.logText())
		}
	}()
	polltest.Until(r.tb, timeout, f)
}

// awaitSubscriptions waits until the nodes have n subscriptions to channel. It does not wait for the full reads after
// the subscriptions.
func awaitSubscriptions(tb testing.TB, channel string, n int64, nodes ...*goredis.Client) {
	tb.Helper()
	polltest.Until(tb, timeout, func() bool {
		sum := int64(0)
		for _, c := range nodes {
			sum += c.PubSubNumSub(context.Background(), channel).Val()[channel]
		}
		return sum == n
	}, "subscriptions to %s", channel)
}

// awaitSettled waits until the replicas have subscribed and have made the full read after the subscription. Otherwise
// this full read could find changes without messages.
func awaitSettled(tb testing.TB, client *goredis.Client, prefix string, replicas ...*replica) {
	tb.Helper()
	channel := prefix + "rls:resets"
	awaitSubscriptions(tb, channel, int64(len(replicas)), client)
	for _, replica := range replicas {
		for range 2 { // the first message can arrive during the full read
			message := rand.Text()
			replica.await(func() (isReceived bool) {
				require.NoError(tb, client.Publish(context.Background(), channel, message).Err())
				replica.withLock(func() { isReceived = slices.Contains(replica.resets, message) })
				return isReceived
			})
		}
	}
}

// countCommands returns how often Redis got a command.
func countCommands(tb testing.TB, c *goredis.Client, command string) (n int) {
	tb.Helper()
	for line := range strings.Lines(c.Info(context.Background(), "commandstats").Val()) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_"+command+":"); ok {
			for field := range strings.SplitSeq(strings.TrimSpace(rest), ",") {
				name, value, _ := strings.Cut(field, "=")
				if name == "calls" || name == "rejected_calls" {
					count, err := strconv.Atoi(value)
					require.NoError(tb, err)
					n += count
				}
			}
		}
	}
	return n
}

// awaitCalls waits until Redis got a command n more times.
func awaitCalls(tb testing.TB, c *goredis.Client, command string, n int) {
	tb.Helper()
	firstCount := countCommands(tb, c, command)
	polltest.Until(tb, timeout, func() bool { return countCommands(tb, c, command) >= firstCount+n }, "%d more commands %s", n, command)
}

// Put sets the value of a field, and returns the old value.
func (r *replica) Put(ctx context.Context, field, value string) (oldValue string, hadValue bool, err error) {
	return r.write(ctx, changes.Write{Field: field, Value: &value})
}

// Delete deletes the value of a field, and returns the value.
func (r *replica) Delete(ctx context.Context, field string) (oldValue string, hadValue bool, err error) {
	return r.write(ctx, changes.Write{Field: field})
}

func (r *replica) write(ctx context.Context, w changes.Write) (oldValue string, hadValue bool, err error) {
	result, err := r.MakeChange(ctx, changes.Change{Origin: changes.Origin{Action: changes.Put}, Writes: []changes.Write{w}})
	if err != nil || result.OldValues[0] == nil {
		return "", false, err
	}
	return *result.OldValues[0], true, nil
}

// storedValues returns the values in Redis.
func storedValues(c *goredis.Client, prefix string) map[string]string {
	storedByTarget := c.HGetAll(context.Background(), prefix+"rls:overrides").Val()
	delete(storedByTarget, changes.VersionField)
	return storedByTarget
}

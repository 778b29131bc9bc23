package overrides_test

import (
	"bytes"
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
	"github.com/seed-81f232ab/rls/internal/polltest"
	"github.com/seed-81f232ab/rls/internal/redistest"
	"github.com/seed-81f232ab/rls/source/overrides"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, redistest.IgnoreShared()...)
}

// ample is enough on a machine with much to do. With a Resync that is never, what
// happens within it is by a message.
const (
	never = time.Hour
	ample = 20 * time.Second
)

// connect makes a client as rls does, but one that a busy machine doesn't cut short.
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

// replica is a Store and what it has told.
type replica struct {
	*overrides.Store
	tb testing.TB

	mu      sync.Mutex
	applied []map[string]string
	states  []error
	resets  []string
	log     bytes.Buffer
}

// newReplica completes o and makes its Store.
func newReplica(tb testing.TB, o overrides.Options) *replica {
	r := &replica{tb: tb}
	o.Apply = func(all map[string]string) {
		r.locked(func() { r.applied = append(r.applied, maps.Clone(all)) })
	}
	o.OnState = func(err error) { r.locked(func() { r.states = append(r.states, err) }) }
	o.OnReset = func(counter string) { r.locked(func() { r.resets = append(r.resets, counter) }) }
	o.Log = slog.New(slog.NewTextHandler(r, nil))
	r.Store = overrides.New(o)
	return r
}

// follow makes a replica that runs until the test ends, and waits for its first read.
func follow(tb testing.TB, o overrides.Options) *replica {
	tb.Helper()
	r := newReplica(tb, o)
	r.start()
	r.sees(ample, map[string]string{})
	return r
}

// start runs it until the test ends or stop is called.
func (r *replica) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	stop = func() { cancel(); running.Wait() }
	r.tb.Cleanup(stop)
	return stop
}

func (r *replica) locked(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// Write is the log's.
func (r *replica) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(p)
}

func (r *replica) logged() (text string) {
	r.locked(func() { text = r.log.String() })
	return text
}

// now is what was applied last, nil if nothing.
func (r *replica) now() (all map[string]string) {
	r.locked(func() {
		if n := len(r.applied); n > 0 {
			all = r.applied[n-1]
		}
	})
	return all
}

func (r *replica) times() (n int) {
	r.locked(func() { n = len(r.applied) })
	return n
}

func (r *replica) told() (states []error) {
	r.locked(func() { states = append(states, r.states...) })
	return states
}

// sees waits until all is what is applied.
func (r *replica) sees(within time.Duration, all map[string]string) {
	r.tb.Helper()
	r.until(within, func() bool { now := r.now(); return now != nil && maps.Equal(now, all) })
}

func (r *replica) until(within time.Duration, f func() bool) {
	r.tb.Helper()
	defer func() {
		if r.tb.Failed() {
			r.tb.Logf("applied last: %v\nstates: %v\nlog: %s", r.now(), r.told(), r.logged())
		}
	}()
	polltest.Until(r.tb, within, f)
}

// subscribed waits until the nodes know n subscriptions to channel. The full reads
// that follow may not be over.
func subscribed(tb testing.TB, channel string, n int64, nodes ...*goredis.Client) {
	tb.Helper()
	polltest.Until(tb, ample, func() bool {
		sum := int64(0)
		for _, c := range nodes {
			sum += c.PubSubNumSub(context.Background(), channel).Val()[channel]
		}
		return sum == n
	}, "subscriptions to %s", channel)
}

// settled waits until the replicas are subscribed and the full read after that is
// over, for it would find what no message tells.
func settled(tb testing.TB, c *goredis.Client, prefix string, replicas ...*replica) {
	tb.Helper()
	channel := prefix + "rls:resets"
	subscribed(tb, channel, int64(len(replicas)), c)
	for _, r := range replicas {
		for range 2 { // a message that comes with that read, or after it; one after that
			message := rand.Text()
			r.until(ample, func() (told bool) {
				require.NoError(tb, c.Publish(context.Background(), channel, message).Err())
				r.locked(func() { told = slices.Contains(r.resets, message) })
				return told
			})
		}
	}
}

// calls is how often Redis was asked to do a command, by anyone.
func calls(tb testing.TB, c *goredis.Client, command string) (n int) {
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

// more waits until Redis was asked n times more to do a command.
func more(tb testing.TB, c *goredis.Client, command string, n int) {
	tb.Helper()
	before := calls(tb, c, command)
	polltest.Until(tb, ample, func() bool { return calls(tb, c, command) >= before+n }, "%d times more %s", n, command)
}

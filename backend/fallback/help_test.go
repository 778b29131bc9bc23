package fallback

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/limit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDown = fmt.Errorf("no route: %w", backend.ErrUnavailable)

var errNotSent = &backend.Error{Reason: backend.ReasonOverload, NotSent: true}

// fixture is a Limiter over two local Limiters. A test can let the primary fail.
type fixture struct {
	*Limiter
	*recorder
	primaryCounters *local.Limiter     // counters of the primary
	primary         *backendtest.Flaky // wraps primaryCounters
	secondary       *local.Limiter
}

// newFixture returns a fixture that is closed at the end of the test. change can set other options.
func newFixture(t *testing.T, change func(*Options)) *fixture {
	l := &fixture{recorder: new(recorder), primaryCounters: local.New(local.Options{}), secondary: local.New(local.Options{})}
	l.primary = backendtest.NewFlaky(l.primaryCounters)
	var o Options
	o = Options{
		Primary: l.primary, Secondary: l.secondary, Ratio: 0.5, Observer: l.recorder,
		Shards: 1, ShardOf: func(*backend.Hit) int { return 0 },
		Probe: func(context.Context, int) error {
			return takeOne(o.Primary, "probe", newLimit(t, 1, limit.Second), 1).Err
		},
	}
	if change != nil {
		change(&o)
	}
	l.Limiter = New(o)
	t.Cleanup(l.Close)
	return l
}

// openBreakers lets the primary fail until the breakers of all keys are open.
func (l *fixture) openBreakers(lim *limit.Limit, keys ...string) {
	l.primary.SetError(errDown)
	for range minFailures + 1 {
		for _, key := range keys {
			l.take(key, lim, 0)
		}
		time.Sleep(minFailingTime)
	}
}

// heal lets the primary work again and waits for the end of the outage.
func (l *fixture) heal() {
	l.primary.SetError(nil)
	l.waitUntilUp()
}

func (l *fixture) waitUntilUp() {
	for l.isDown() {
		time.Sleep(time.Millisecond)
	}
}

func (l *fixture) isDown() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.downShardCount > 0
}

func (l *fixture) take(key string, lim *limit.Limit, n int64) backend.Result {
	return takeOne(l.Limiter, key, lim, n)
}

func takeOne(l backend.Limiter, key string, lim *limit.Limit, n int64) backend.Result {
	results := make([]backend.Result, 1)
	l.Take(context.Background(), time.Now(), []backend.Hit{{Key: []byte(key), Limit: lim, N: n}}, results)
	return results[0]
}

// spentHits returns the hits that a counter of l has spent.
func spentHits(l backend.Limiter, key string, lim *limit.Limit) int64 {
	return lim.Capacity() - takeOne(l, key, lim, 0).Remaining
}

// newLimit returns a limit of n per unit. change can set other fields.
func newLimit(t *testing.T, n uint32, unit limit.Unit, change ...func(*limit.Spec)) *limit.Limit {
	s := limit.Spec{Requests: n, Unit: unit}
	for _, f := range change {
		f(&s)
	}
	return backendtest.NewLimit(t, s)
}

// recorder is an Observer that keeps all events.
type recorder struct {
	changesMu    sync.Mutex
	changes      []StateChange
	breakerLog   []BreakerChange
	blips        []Outage
	hitsServed   atomic.Int64
	hitsReplayed atomic.Int64
}

func (r *recorder) StateChanged(c StateChange) {
	r.changesMu.Lock()
	defer r.changesMu.Unlock()
	r.changes = append(r.changes, c)
}

func (r *recorder) BreakerChanged(c BreakerChange) {
	r.changesMu.Lock()
	defer r.changesMu.Unlock()
	r.breakerLog = append(r.breakerLog, c)
}

func (r *recorder) BlipEnded(o Outage) {
	r.changesMu.Lock()
	defer r.changesMu.Unlock()
	r.blips = append(r.blips, o)
}

func (r *recorder) Served(hits int)     { r.hitsServed.Add(int64(hits)) }
func (r *recorder) Replayed(hits int64) { r.hitsReplayed.Add(hits) }

func (r *recorder) stateChanges() []StateChange {
	r.changesMu.Lock()
	defer r.changesMu.Unlock()
	return slices.Clone(r.changes)
}

// countChanges returns how often the primary went down, and how often it came up again.
func (r *recorder) countChanges() (downCount, upCount int) {
	for _, c := range r.stateChanges() {
		if c.Down {
			downCount++
		} else {
			upCount++
		}
	}
	return downCount, upCount
}

// useTwoShards gives the Limiter one shard for keys with a, and one for keys with b.
func useTwoShards(o *Options) {
	o.Shards, o.ShardOf = 2, func(h *backend.Hit) int { return int(h.Key[0] - 'a') }
}

// failKeysWithB returns an error for a hit of shard b.
func failKeysWithB(h backend.Hit) error {
	if h.Key[0] == 'b' {
		return errDown
	}
	return nil
}

package fallback

import (
	"context"
	"fmt"
	"sync"
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

// rig is a Limiter over two in memory, of which the primary fails on demand.
type rig struct {
	*Limiter
	shared  *local.Limiter // what the primary counts in
	primary *backendtest.Flaky
	own     *local.Limiter // the secondary

	mu      sync.Mutex
	changes []StateChange
}

// newRig closes with the test; set changes the options.
func newRig(t *testing.T, set func(*Options)) *rig {
	r := &rig{shared: local.New(local.Options{}), own: local.New(local.Options{})}
	r.primary = backendtest.NewFlaky(r.shared)
	o := Options{Primary: r.primary, Secondary: r.own, OnStateChange: func(c StateChange) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.changes = append(r.changes, c)
	}}
	if set != nil {
		set(&o)
	}
	r.Limiter = New(o)
	t.Cleanup(r.Close)
	return r
}

func (r *rig) told() []StateChange {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]StateChange(nil), r.changes...)
}

// downs counts the changes down, and up.
func (r *rig) downs() (downs, ups int) {
	for _, c := range r.told() {
		if c.Down {
			downs++
		} else {
			ups++
		}
	}
	return downs, ups
}

// trip lets the primary fail until all parts that the keys are on have opened.
func (r *rig) trip(lim *limit.Limit, keys ...string) {
	r.primary.Fail(errDown)
	for range enough + 1 {
		for _, key := range keys {
			r.take(key, lim, 0)
		}
		time.Sleep(r.o.TripAfter)
	}
}

// heal lets the primary work again, and waits for the parts to close.
func (r *rig) heal() {
	r.primary.Fail(nil)
	for r.Down() {
		time.Sleep(time.Millisecond)
	}
}

func (r *rig) take(key string, lim *limit.Limit, n int64) backend.Result {
	return takeOf(r.Limiter, key, lim, n)
}

func takeOf(l backend.Limiter, key string, lim *limit.Limit, n int64) backend.Result {
	results := make([]backend.Result, 1)
	l.Take(context.Background(), time.Now(), []backend.Hit{{Key: []byte(key), Limit: lim, N: n}}, results)
	return results[0]
}

// spent is what a counter of the primary or the secondary has spent.
func spent(l backend.Limiter, key string, lim *limit.Limit) int64 {
	return lim.Capacity() - takeOf(l, key, lim, 0).Remaining
}

func per(t *testing.T, n uint32, u limit.Unit, set ...func(*limit.Spec)) *limit.Limit {
	s := limit.Spec{Requests: n, Unit: u}
	for _, f := range set {
		f(&s)
	}
	return backendtest.NewLimit(t, s)
}

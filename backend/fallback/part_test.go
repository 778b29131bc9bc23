package fallback

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

func TestWhatOpensAPart(t *testing.T) {
	const fail, pass = true, false
	type step struct {
		after time.Duration
		fails bool
	}
	ms := time.Millisecond
	for _, c := range []struct {
		name  string
		steps []step
		opens bool
	}{
		{"one failure", []step{{0, fail}}, false},
		{"many at once", []step{{0, fail}, {0, fail}, {0, fail}, {0, fail}, {49 * ms, fail}}, false},
		{"three over its time", []step{{0, fail}, {25 * ms, fail}, {25 * ms, fail}}, true},
		{"two, however long", []step{{0, fail}, {time.Hour, fail}}, false},
		{"rare ones", []step{{0, fail}, {time.Hour, fail}, {time.Hour, fail}}, true},
		{"with a success in between", []step{{0, fail}, {25 * ms, fail}, {0, pass}, {25 * ms, fail}, {25 * ms, fail}}, false},
		{"again after that", []step{{0, fail}, {25 * ms, pass}, {25 * ms, fail}, {25 * ms, fail}, {25 * ms, fail}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil)
				lim := per(t, 100, limit.Day)
				for _, s := range c.steps {
					time.Sleep(s.after)
					r.primary.Fail(nil)
					if s.fails {
						r.primary.Fail(errDown)
					}
					assert.Equal(t, s.fails, r.take("k", lim, 1).Degraded())
				}
				assert.Equal(t, c.opens, r.Down())
				calls := r.primary.Calls()
				r.take("k", lim, 1)
				assert.Equal(t, !c.opens, r.primary.Calls() > calls)
			})
		})
	}
}

func TestHitsThatThePrimaryWasNotAskedForOpenNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		lim := per(t, 100, limit.Day)
		r.primary.Fail(fmt.Errorf("too many at once: %w: %w", backend.ErrOverloaded, backend.ErrUnavailable))
		for range 10 {
			got := r.take("k", lim, 1)
			require.NoError(t, got.Err)
			assert.True(t, got.Degraded())
			time.Sleep(time.Second)
		}
		assert.False(t, r.Down())
	})
}

func TestAFrozenPrimaryDelaysOnlyTheFirstCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const budget = 50 * time.Millisecond
		frozen := func(ctx context.Context, _ time.Time, _ []backend.Hit, results []backend.Result) {
			time.Sleep(budget)
			for i := range results {
				results[i].Err = errDown
			}
		}
		r := newRig(t, func(o *Options) { o.Primary = takeFunc(frozen) })
		lim := per(t, 1_000_000, limit.Day)
		slow := 0
		var mu sync.Mutex
		var running sync.WaitGroup
		for range 32 {
			running.Go(func() {
				for range 1000 {
					began := time.Now()
					r.take("k", lim, 1)
					took := time.Since(began)
					mu.Lock()
					assert.LessOrEqual(t, took, budget)
					if took > 0 {
						slow++
					}
					mu.Unlock()
					time.Sleep(time.Millisecond)
				}
			})
		}
		running.Wait()
		assert.LessOrEqual(t, slow, 32*2, "of 32,000")
	})
}

type takeFunc func(context.Context, time.Time, []backend.Hit, []backend.Result)

func (f takeFunc) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	f(ctx, now, hits, results)
}

func TestProbesBackOffAndScatter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probes := make(chan time.Time, 1000)
		var up atomic.Bool
		r := newRig(t, func(o *Options) {
			o.Probe = func(context.Context, int) error {
				probes <- time.Now()
				if up.Load() {
					return nil
				}
				return errDown
			}
		})
		opened := time.Now()
		r.trip(per(t, 100, limit.Day), "k")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		last, want := opened.Add(2*r.o.TripAfter), 50*time.Millisecond
		scattered := false
		count := len(probes)
		for i := range count {
			at := <-probes
			pause := at.Sub(last)
			last = at
			if i == 0 {
				continue // it opened on the way to the first
			}
			want = min(2*want, 500*time.Millisecond)
			assert.InDelta(t, want, pause, float64(want)/5+1)
			scattered = scattered || pause != want
		}
		assert.True(t, scattered)
		assert.InDelta(t, 23, count, 4)
		up.Store(true)
		r.primary.Fail(nil)
		time.Sleep(1200 * time.Millisecond)
		synctest.Wait()
		assert.False(t, r.Down(), "back within half a second and a fifth, and half a second more to be sure")
		assert.False(t, r.take("k", per(t, 100, limit.Day), 1).Degraded())
	})
}

func TestStateChangesAreToldOnceEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(o *Options) {
			o.Parts, o.Part = 3, func(h *backend.Hit) int { return int(h.Key[0] - 'a') }
		})
		lim := per(t, 1000, limit.Year)
		r.trip(lim, "a", "b", "c")
		began := time.Now()
		for range 20 {
			r.take("a", lim, 1)
			r.take("b", lim, 1)
		}
		time.Sleep(5 * time.Second)
		require.Len(t, r.told(), 1)
		down := r.told()[0]
		assert.True(t, down.Down)
		assert.ErrorIs(t, down.Err, backend.ErrUnavailable)

		r.heal()
		require.Len(t, r.told(), 2)
		up := r.told()[1]
		assert.False(t, up.Down)
		assert.InDelta(t, 5.2, up.Lasted.Seconds(), 1.4)
		assert.GreaterOrEqual(t, up.Lasted, time.Since(began)-1200*time.Millisecond)
		assert.Equal(t, int64(3*(enough+1)+40), up.Served, "those that opened it, too")
		assert.Equal(t, int64(40), up.Carried)
	})
}

func TestAPartThatFlapsIsProbedLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(o *Options) {
			o.Probe = func(context.Context, int) error { return nil } // which knows no better
		})
		lim := per(t, 1_000_000, limit.Day)
		r.primary.Fail(errDown)
		for range 60_000 {
			r.take("k", lim, 1)
			time.Sleep(time.Millisecond)
		}
		assert.Less(t, r.primary.Calls(), 130*60, "of 60,000 calls")
		r.heal()
		downs, ups := r.downs()
		assert.LessOrEqual(t, downs, 2, "told as one outage, but for the start")
		assert.Equal(t, downs, ups)
	})
}

func TestOnePartOpensAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(o *Options) {
			o.Parts, o.Part = 2, func(h *backend.Hit) int { return int(h.Key[0] - 'a') }
			o.Probe = func(context.Context, int) error { return errors.New("still away") }
		})
		lim := per(t, 1000, limit.Year)
		r.primary.FailHits(func(h backend.Hit) error {
			if h.Key[0] == 'b' {
				return errDown
			}
			return nil
		})
		for range 1000 {
			assert.False(t, r.take("a", lim, 1).Degraded())
			assert.True(t, r.take("b", lim, 1).Degraded())
			time.Sleep(time.Millisecond)
		}
		assert.True(t, r.parts[1].isOpen())
		assert.False(t, r.parts[0].isOpen())
	})
}

func TestTheProbeOfAPrimaryWithoutOneWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		lim := per(t, 1000, limit.Year)
		r.trip(lim, "k")
		r.primary.FailHits(func(h backend.Hit) error { // it can be read, but not written
			if h.N > 0 {
				return errDown
			}
			return nil
		})
		time.Sleep(5 * time.Second)
		assert.True(t, r.Down())
		r.heal()
	})
}

package fallback

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/limit"
)

func TestBreakerOpensAfterMinFailuresAndOpenAfter(t *testing.T) {
	const fail, pass = true, false
	type step struct {
		pause time.Duration
		fails bool
	}
	ms := time.Millisecond
	for _, c := range []struct {
		name     string
		steps    []step
		wantOpen bool
	}{
		{"one failure", []step{{0, fail}}, false},
		{"many failures within 49 ms", []step{{0, fail}, {0, fail}, {0, fail}, {0, fail}, {49 * ms, fail}}, false},
		{"three failures in 50 ms", []step{{0, fail}, {25 * ms, fail}, {25 * ms, fail}}, true},
		{"three failures in two seconds", []step{{0, fail}, {time.Second, fail}, {time.Second, fail}}, true},
		{"many failures, and one more after a long pause", []step{{0, fail}, {0, fail}, {0, fail}, {1001 * ms, fail}}, false},
		{"three failures after a long pause", []step{{0, fail}, {time.Hour, fail}, {25 * ms, fail}, {25 * ms, fail}}, true},
		{"a success in between", []step{{0, fail}, {25 * ms, fail}, {0, pass}, {25 * ms, fail}, {25 * ms, fail}}, false},
		{"three failures after a success", []step{{0, fail}, {25 * ms, pass}, {25 * ms, fail}, {25 * ms, fail}, {25 * ms, fail}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newFixture(t, nil)
				lim := newLimit(t, 100, limit.Day)
				for _, s := range c.steps {
					time.Sleep(s.pause)
					l.primary.SetError(nil)
					if s.fails {
						l.primary.SetError(errDown)
					}
					assert.Equal(t, s.fails, l.take("k", lim, 1).IsDegraded())
				}
				assert.Equal(t, c.wantOpen, l.isDown())
				calls := l.primary.Calls()
				l.take("k", lim, 1)
				assert.Equal(t, !c.wantOpen, l.primary.Calls() > calls)
			})
		})
	}
}

func TestSlowFailuresOpenBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		lim := newLimit(t, 100, limit.Day)
		l.primary.SetError(errDown)
		l.primary.Delay(2 * time.Second)
		for range minFailures {
			assert.False(t, l.isDown())
			assert.True(t, l.take("k", lim, 1).IsDegraded())
		}
		assert.True(t, l.isDown())
	})
}

func TestUnsentHitsDoNotOpenBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		lim := newLimit(t, 100, limit.Day)
		l.primary.SetError(&backend.Error{Reason: backend.ReasonOverload, Cause: errors.New("queue is full")})
		for range 10 {
			got := l.take("k", lim, 1)
			require.NoError(t, got.Err)
			assert.True(t, got.IsDegraded())
			time.Sleep(time.Second)
		}
		assert.False(t, l.isDown())
	})
}

func TestFrozenPrimaryDelaysOnlyTheFirstCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 50 * time.Millisecond
		frozenPrimary := func(_ context.Context, _ time.Time, _ []backend.Hit, results []backend.Result) {
			time.Sleep(timeout)
			for i := range results {
				results[i].Err = errDown
			}
		}
		l := newFixture(t, func(o *Options) { o.Primary = backendtest.Func(frozenPrimary) })
		lim := newLimit(t, 1_000_000, limit.Day)
		slowCalls := 0
		var mu sync.Mutex
		var callers sync.WaitGroup
		for range 32 {
			callers.Go(func() {
				for range 1000 {
					start := time.Now()
					l.take("k", lim, 1)
					duration := time.Since(start)
					mu.Lock()
					assert.LessOrEqual(t, duration, timeout)
					if duration > 0 {
						slowCalls++
					}
					mu.Unlock()
					time.Sleep(time.Millisecond)
				}
			})
		}
		callers.Wait()
		assert.LessOrEqual(t, slowCalls, 32*2, "of 32,000 calls")
	})
}

func TestProbesBackOffWithJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probes := make(chan time.Time, 1000)
		var isUp atomic.Bool
		l := newFixture(t, func(o *Options) {
			o.Probe = func(context.Context, int) error {
				probes <- time.Now()
				if isUp.Load() {
					return nil
				}
				return errDown
			}
		})
		openTime := time.Now()
		l.openBreakers(newLimit(t, 100, limit.Day), "k")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		previousTime, want := openTime.Add(2*minFailingTime), 50*time.Millisecond
		jitter := false
		probeCount := len(probes)
		for i := range probeCount {
			probeTime := <-probes
			pause := probeTime.Sub(previousTime)
			previousTime = probeTime
			if i == 0 {
				continue // the breaker opened at an unknown time before this probe
			}
			want = min(2*want, 500*time.Millisecond)
			assert.InDelta(t, want, pause, float64(want)/5+1)
			jitter = jitter || pause != want
		}
		assert.True(t, jitter)
		assert.InDelta(t, 23, probeCount, 4)
		isUp.Store(true)
		l.primary.SetError(nil)
		time.Sleep(1200 * time.Millisecond)
		synctest.Wait()
		assert.False(t, l.isDown(), "up after a pause of at most 600 ms and the 500 ms of a stable primary")
		assert.False(t, l.take("k", newLimit(t, 100, limit.Day), 1).IsDegraded())
	})
}

func TestObserverReceivesOneOutageOfThreeShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, func(o *Options) {
			o.Shards, o.ShardOf = 3, func(h *backend.Hit) int { return int(h.Key[0] - 'a') }
		})
		lim := newLimit(t, 1000, limit.Year)
		l.openBreakers(lim, "a", "b", "c")
		openingHits := int64(3 * (minFailures + 1))
		assert.Equal(t, openingHits, l.hitsServed.Load())
		start := time.Now()
		for i := range 20 {
			l.take("a", lim, 1)
			l.take("b", lim, 1)
			assert.Equal(t, openingHits+int64(2*i+2), l.hitsServed.Load(), "counted with the decision")
		}
		time.Sleep(5 * time.Second)
		require.Len(t, l.stateChanges(), 1)
		downChange := l.stateChanges()[0]
		assert.True(t, downChange.Down)
		assert.ErrorIs(t, downChange.Outage.Err, backend.ErrUnavailable)
		assert.Zero(t, l.hitsReplayed.Load())

		l.heal()
		require.Len(t, l.stateChanges(), 2)
		upChange := l.stateChanges()[1]
		assert.False(t, upChange.Down)
		assert.InDelta(t, 5.2, upChange.Outage.Duration().Seconds(), 1.4)
		assert.GreaterOrEqual(t, upChange.Outage.Duration(), time.Since(start)-1200*time.Millisecond)
		assert.Equal(t, openingHits+40, upChange.Outage.Decisions)
		assert.Equal(t, int64(40), upChange.Outage.Replayed)
		assert.Equal(t, int64(40), l.hitsReplayed.Load())
	})
}

func TestShardThatFailsRepeatedlyIsProbedLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, func(o *Options) {
			o.Probe = func(context.Context, int) error { return nil } // a probe succeeds, but hits fail
		})
		lim := newLimit(t, 1_000_000, limit.Day)
		l.primary.SetError(errDown)
		for range 60_000 {
			l.take("k", lim, 1)
			time.Sleep(time.Millisecond)
		}
		assert.Less(t, l.primary.Calls(), 130*60, "of 60,000 calls")
		l.heal()
		downCount, upCount := l.countChanges()
		assert.LessOrEqual(t, downCount, 2, "one outage, besides the start")
		assert.Equal(t, downCount, upCount)
	})
}

func TestBreakerOpensForItsShardOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, func(o *Options) {
			useTwoShards(o)
			o.Probe = func(context.Context, int) error { return errors.New("still down") }
		})
		lim := newLimit(t, 1000, limit.Year)
		l.primary.FailHits(failKeysWithB)
		for range 1000 {
			assert.False(t, l.take("a", lim, 1).IsDegraded())
			assert.True(t, l.take("b", lim, 1).IsDegraded())
			time.Sleep(time.Millisecond)
		}
		assert.True(t, l.breakers[1].isOpen())
		assert.False(t, l.breakers[0].isOpen())
	})
}

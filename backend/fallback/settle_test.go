package fallback

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/limit"
)

func TestWhatWasAdmittedIsChargedOnce(t *testing.T) {
	for _, a := range limit.Algorithms() {
		t.Run(a.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil)
				lim := per(t, 100, limit.Year, func(s *limit.Spec) { s.Algorithm = a })
				r.take("k", lim, 10)
				r.trip(lim, "k")
				for range 80 {
					r.take("k", lim, 1)
				}
				r.take("k", lim, -5)
				time.Sleep(time.Second)
				r.heal()
				assert.Equal(t, int64(10+45), spent(r.shared, "k", lim), "50 were admitted and 5 given back")
				assert.Equal(t, int64(45), r.told()[1].Carried)

				r.trip(lim, "k")
				assert.True(t, r.take("k", lim, 5).Allowed, "what was given back")
				assert.False(t, r.take("k", lim, 1).Allowed, "the share is granted once")
				r.heal()
				assert.Equal(t, int64(10+50), spent(r.shared, "k", lim))
				time.Sleep(time.Hour)
				assert.Equal(t, int64(10+50), spent(r.shared, "k", lim))
			})
		})
	}
}

func TestOnlyWhatStillCountsIsCharged(t *testing.T) {
	for _, c := range []struct {
		algorithm    limit.Algorithm
		chargeDenied bool
		want         int64 // of 50 admitted 61 seconds ago, and 3 just now
	}{
		{limit.FixedWindow, false, 3},
		{limit.FixedWindow, true, 3},
		{limit.SlidingLog, false, 3},
		{limit.SlidingWindow, false, 50}, // most of the last window still counts
		{limit.TokenBucket, false, 3},    // it refilled at its share of the rate
	} {
		t.Run(fmt.Sprint(c.algorithm, c.chargeDenied), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil)
				lim := per(t, 100, limit.Minute, func(s *limit.Spec) { s.Algorithm, s.ChargeDenied = c.algorithm, c.chargeDenied })
				time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)))
				r.trip(lim, "k")
				r.take("k", lim, 50)
				time.Sleep(61 * time.Second)
				for range 3 {
					r.take("k", lim, 1)
				}
				r.heal()
				assert.InDelta(t, c.want, spent(r.shared, "k", lim), 1)
			})
		})
	}
}

func TestDebtOfTheSecondaryIsNotCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		lim := per(t, 100, limit.Year, func(s *limit.Spec) { s.ChargeDenied = true })
		r.trip(lim, "k")
		for range 500 {
			r.take("k", lim, 1)
		}
		r.heal()
		assert.Equal(t, int64(50), spent(r.shared, "k", lim))
	})
}

// What fails while the part is still closed may have been charged all the same.
func TestWhatThePrimaryMayHaveChargedIsNotChargedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answerLost := new(atomic.Bool)
		var shared *local.Limiter
		r := newRig(t, func(o *Options) {
			shared = local.New(local.Options{})
			o.Primary = takeFunc(func(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
				shared.Take(ctx, now, hits, results)
				if answerLost.Load() {
					for i := range results {
						results[i].Err = errDown
					}
				}
			})
		})
		lim := per(t, 1000, limit.Year)
		answerLost.Store(true)
		for range 100 {
			require.True(t, r.take("k", lim, 1).Allowed)
			time.Sleep(time.Millisecond)
		}
		require.True(t, r.Down())
		answerLost.Store(false)
		for r.Down() {
			time.Sleep(time.Millisecond)
		}
		assert.Equal(t, int64(100), spent(shared, "k", lim), "charged before it opened, or after, never both")
	})
}

func TestABatchThatFailsIsNotTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var shared *local.Limiter
		failing, down := new(atomic.Int32), new(atomic.Bool)
		r := newRig(t, func(o *Options) {
			shared = local.New(local.Options{})
			o.Probe = func(context.Context, int) error {
				if down.Load() {
					return errDown
				}
				return nil
			}
			o.Primary = takeFunc(func(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
				if down.Load() {
					for i := range results {
						results[i].Err = errDown
					}
					return
				}
				shared.Take(ctx, now, hits, results) // charged, even if the answer is lost
				if hits[0].Shadow && failing.Add(-1) >= 0 {
					for i := range results {
						results[i].Err = errDown
					}
				}
			})
		})
		lim := per(t, 1000, limit.Year)
		down.Store(true)
		for range 10 {
			r.take("k", lim, 0)
			time.Sleep(20 * time.Millisecond)
		}
		for i := range 5 * batch {
			r.take(fmt.Sprint("k", i), lim, 1)
		}
		failing.Store(2)
		down.Store(false)
		for r.Down() {
			time.Sleep(time.Millisecond)
		}
		for i := range 5 * batch {
			assert.Equal(t, int64(1), spent(shared, fmt.Sprint("k", i), lim))
		}
		assert.Equal(t, int64(3*batch), r.told()[1].Carried)
	})
}

// A part that opens again while it settles keeps the rest for later.
func TestTheRestWaitsIfThePartOpensAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		lim := per(t, 1000, limit.Year)
		r.trip(lim, "k")
		for i := range 3 * batch {
			r.take(fmt.Sprint("k", i), lim, 1)
		}
		p := r.parts[0]
		assert.Zero(t, p.settle(t.Context()), "it is open")
		r.heal()
		for i := range 3 * batch {
			assert.Equal(t, int64(1), spent(r.shared, fmt.Sprint("k", i), lim))
		}
	})
}

// A call can find its part open, and write to the ledger after it was settled.
func TestLatecomersAreSettledToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		lim := per(t, 1000, limit.Year)
		r.trip(lim, "k")
		r.take("k", lim, 1)
		r.primary.Fail(nil)
		for r.parts[0].isOpen() {
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		require.Equal(t, int64(1), spent(r.shared, "k", lim))
		results := []backend.Result{{Err: errOpen}}
		r.standIn(t.Context(), time.Now(), []backend.Hit{{Key: []byte("k"), Limit: lim, N: 1}}, results)
		time.Sleep(time.Second)
		assert.Equal(t, int64(2), spent(r.shared, "k", lim))
		assert.False(t, r.Down())
	})
}

func TestModesThatDontCountCarryNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		lim := per(t, 1000, limit.Year, func(s *limit.Spec) { s.OnBackendFailure = limit.FailAllow })
		r.trip(lim, "k")
		r.take("k", lim, 1)
		r.heal()
		assert.Zero(t, spent(r.shared, "k", lim))
	})
}

func TestTheLedgerIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		lim := per(t, 1000, limit.Year)
		g := r.parts[0].ledger
		pad := strings.Repeat("x", 900)
		for i := range 100_000 {
			g.add(fmt.Append(nil, i, pad), lim, 1)
		}
		g.add([]byte(strings.Repeat("y", maxOwedKey+1)), lim, 1)
		assert.LessOrEqual(t, g.room.Load(), int64(maxRoom))
		assert.Greater(t, g.room.Load(), int64(maxRoom-2000))
		all := g.take()
		assert.InDelta(t, maxRoom/(900+5+overhead), len(all), 2000)
		assert.Zero(t, g.room.Load())
		g.putBack(all)
		assert.Len(t, g.take(), len(all))

		g.add([]byte("k"), lim, limit.MaxHits*2)
		g.add([]byte("k"), lim, limit.MaxHits)
		g.add([]byte("k"), per(t, 7, limit.Day), 1)
		all = g.take()
		require.Len(t, all, 2, "limits of two tags")
		assert.Equal(t, int64(limit.MaxHits), max(all[0].n, all[1].n))
	})
}

package fallback

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/limit"
)

func TestAdmittedHitsAreReplayedOnce(t *testing.T) {
	for _, a := range limit.Algorithms() {
		if a.HasHolds() {
			continue // holds are not replayed
		}
		t.Run(a.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newFixture(t, nil)
				lim := newLimit(t, 100, limit.Year, func(s *limit.Spec) { s.Algorithm = a })
				l.take("k", lim, 10)
				l.openBreakers(lim, "k")
				for range 80 {
					l.take("k", lim, 1)
				}
				l.take("k", lim, -5)
				time.Sleep(time.Second)
				l.heal()
				assert.Equal(t, int64(10+45), spentHits(l.primaryCounters, "k", lim), "the secondary admitted 50 and refunded 5")
				assert.Equal(t, int64(45), l.stateChanges()[1].Outage.Replayed)

				l.openBreakers(lim, "k")
				assert.True(t, l.take("k", lim, 5).Allowed, "the refund leaves room for 5 hits")
				assert.False(t, l.take("k", lim, 1).Allowed, "the secondary grants its share once")
				l.heal()
				assert.Equal(t, int64(10+50), spentHits(l.primaryCounters, "k", lim))
				time.Sleep(time.Hour)
				assert.Equal(t, int64(10+50), spentHits(l.primaryCounters, "k", lim))
			})
		})
	}
}

func TestHitsOfAnOutageAreReplayedAfterAFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errFull := &backend.Error{Reason: backend.ReasonOverload, NotSent: true, Cause: errors.New("queue is full")}
		l := newFixture(t, func(o *Options) { o.Probe = func(context.Context, int) error { return nil } })
		lim := newLimit(t, 100, limit.Year)
		l.primary.SetError(errDown)
		for !l.breakers[0].isOpen() {
			l.take("k", lim, 0)
			time.Sleep(minFailingTime)
		}
		assert.True(t, l.take("k", lim, 30).Allowed)
		l.primary.SetError(errFull)
		l.waitUntilUp()
		assert.Zero(t, spentHits(l.primaryCounters, "k", lim))
		l.primary.SetError(nil)
		time.Sleep(2 * maxProbePause)
		assert.Equal(t, int64(30), spentHits(l.primaryCounters, "k", lim))
	})
}

func TestExpiredHitsAreNotReplayed(t *testing.T) {
	for _, c := range []struct {
		algorithm    limit.Algorithm
		chargeDenied bool
		wantSpent    int64 // after the replay of 50 hits that are 61 seconds old, and of 3 new hits
	}{
		{limit.FixedWindow, false, 3},
		{limit.FixedWindow, true, 3},
		{limit.FirstHitWindow, false, 3},
		{limit.FirstHitWindow, true, 3},
		{limit.SlidingLog, false, 3},
		{limit.SlidingWindow, false, 50}, // most of the last window still counts
		{limit.TokenBucket, false, 3},    // the bucket has refilled
	} {
		t.Run(fmt.Sprint(c.algorithm, c.chargeDenied), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newFixture(t, nil)
				lim := newLimit(t, 100, limit.Minute, func(s *limit.Spec) { s.Algorithm, s.ChargeDenied = c.algorithm, c.chargeDenied })
				time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)))
				l.openBreakers(lim, "k")
				l.take("k", lim, 50)
				time.Sleep(61 * time.Second)
				for range 3 {
					l.take("k", lim, 1)
				}
				l.heal()
				assert.InDelta(t, c.wantSpent, spentHits(l.primaryCounters, "k", lim), 1)
			})
		})
	}
}

func TestDeniedHitsAreNotReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		lim := newLimit(t, 100, limit.Year, func(s *limit.Spec) { s.ChargeDenied = true })
		l.openBreakers(lim, "k")
		for range 500 {
			l.take("k", lim, 1)
		}
		l.heal()
		assert.Equal(t, int64(50), spentHits(l.primaryCounters, "k", lim))
	})
}

// If a call fails while its breaker is closed, the primary may have charged the hits.
func TestHitsSentToThePrimaryAreNotReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary, loseAnswers := local.New(local.Options{}), new(atomic.Bool)
		l := newFixture(t, func(o *Options) {
			o.Primary = backendtest.Func(func(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
				primary.Take(ctx, now, hits, results)
				if loseAnswers.Load() {
					failAll(results)
				}
			})
		})
		lim := newLimit(t, 1000, limit.Year)
		loseAnswers.Store(true)
		for range 100 {
			require.True(t, l.take("k", lim, 1).Allowed)
			time.Sleep(time.Millisecond)
		}
		require.True(t, l.isDown())
		loseAnswers.Store(false)
		l.waitUntilUp()
		assert.Equal(t, int64(100), spentHits(primary, "k", lim), "charged by the call or by the replay, never by both")
	})
}

func failAll(results []backend.Result) {
	for i := range results {
		results[i].Err = errDown
	}
}

func TestFailedReplayBatchIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary, failingReplays, isDown := local.New(local.Options{}), new(atomic.Int32), new(atomic.Bool)
		l := newFixture(t, func(o *Options) {
			o.Probe = func(context.Context, int) error {
				if isDown.Load() {
					return errDown
				}
				return nil
			}
			o.Primary = backendtest.Func(func(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
				if isDown.Load() {
					failAll(results)
					return
				}
				primary.Take(ctx, now, hits, results) // charges even if the answer is lost
				if hits[0].Shadow && failingReplays.Add(-1) >= 0 {
					failAll(results)
				}
			})
		})
		lim := newLimit(t, 1000, limit.Year)
		isDown.Store(true)
		for range 10 {
			l.take("k", lim, 0)
			time.Sleep(20 * time.Millisecond)
		}
		for i := range 5 * replayBatchSize {
			l.take(fmt.Sprint("k", i), lim, 1)
		}
		failingReplays.Store(2)
		isDown.Store(false)
		l.waitUntilUp()
		for i := range 5 * replayBatchSize {
			assert.Equal(t, int64(1), spentHits(primary, fmt.Sprint("k", i), lim))
		}
		assert.Equal(t, int64(3*replayBatchSize), l.stateChanges()[1].Outage.Replayed)
		assert.Equal(t, int64(3*replayBatchSize), l.hitsReplayed.Load())
	})
}

func TestReplayKeepsEntriesWhileBreakerIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		lim := newLimit(t, 1000, limit.Year)
		l.openBreakers(lim, "k")
		for i := range 3 * replayBatchSize {
			l.take(fmt.Sprint("k", i), lim, 1)
		}
		l.breakers[0].replay(false)
		assert.Zero(t, l.hitsReplayed.Load())
		l.heal()
		for i := range 3 * replayBatchSize {
			assert.Equal(t, int64(1), spentHits(l.primaryCounters, fmt.Sprint("k", i), lim))
		}
	})
}

// A call that saw the breaker open can log its hits after the first replay.
func TestHitsLoggedDuringTheReplayAreReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		lim := newLimit(t, 1000, limit.Year)
		l.openBreakers(lim, "k")
		l.take("k", lim, 1)
		l.primary.SetError(nil)
		for l.breakers[0].isOpen() {
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		require.Equal(t, int64(1), spentHits(l.primaryCounters, "k", lim))
		results := []backend.Result{{Err: errBreakerOpen}}
		l.serveFailedHits(t.Context(), time.Now(), []backend.Hit{{Key: []byte("k"), Limit: lim, N: 1}}, results)
		time.Sleep(time.Second)
		assert.Equal(t, int64(2), spentHits(l.primaryCounters, "k", lim))
		assert.False(t, l.isDown())
	})
}

func TestHitsOfModeAllowAreNotReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		lim := newLimit(t, 1000, limit.Year, func(s *limit.Spec) { s.OnBackendFailure = limit.FailAllow })
		l.openBreakers(lim, "k")
		l.take("k", lim, 1)
		l.heal()
		assert.Zero(t, spentHits(l.primaryCounters, "k", lim))
	})
}

func TestReplayLogIsBounded(t *testing.T) {
	lim := newLimit(t, 1000, limit.Year)
	log := &replayLog{bytes: new(atomic.Int64)}
	padding := strings.Repeat("x", 900)
	for i := range 100_000 {
		log.add(fmt.Append(nil, i, padding), loggedCharge{limit: lim, n: 1})
	}
	assert.LessOrEqual(t, log.bytes.Load(), int64(maxLogBytes))
	assert.Greater(t, log.bytes.Load(), int64(maxLogBytes-2000))
	entries := log.takeAll()
	assert.InDelta(t, maxLogBytes/(900+5+entryOverhead), len(entries), 2000)
	assert.Zero(t, log.bytes.Load())
	for _, e := range entries {
		log.add([]byte(e.key), *e)
	}
	assert.Len(t, log.takeAll(), len(entries), "the log has room again")
}

func TestReplayLogSumsTheHitsOfEachKeyAndTag(t *testing.T) {
	log := &replayLog{bytes: new(atomic.Int64)}
	lim := newLimit(t, 1000, limit.Year)
	log.add([]byte("k"), loggedCharge{limit: lim, n: limit.MaxHits * 2})
	log.add([]byte("k"), loggedCharge{limit: lim, n: limit.MaxHits})
	log.add([]byte("k"), loggedCharge{limit: newLimit(t, 7, limit.Day), n: 1})
	entries := log.takeAll()
	require.Len(t, entries, 2, "one entry for each Tag")
	assert.Equal(t, int64(limit.MaxHits), max(entries[0].n, entries[1].n), "the hits of an entry are bounded")
}

// With a closed breaker, the replay runs in the background.
func TestReplayWaitsForASuccessfulProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var probes atomic.Int64
		var probeErr atomic.Pointer[error]
		l := newFixture(t, func(o *Options) {
			o.Probe = func(context.Context, int) error {
				probes.Add(1)
				return *probeErr.Load()
			}
		})
		setProbeError := func(err error) { probeErr.Store(&err) }
		setProbeError(errDown)
		lim := newLimit(t, 100, limit.Year)
		l.primary.SetError(errNotSent)
		for range 10 {
			assert.True(t, l.take("k", lim, 1).Allowed)
		}
		l.primary.SetError(nil)
		time.Sleep(time.Minute)
		assert.Zero(t, spentHits(l.primaryCounters, "k", lim), "the shard does not work")
		assert.InDelta(t, time.Minute/maxProbePause, probes.Load(), float64(time.Minute/maxProbePause)/2, "one probe after the other")
		setProbeError(nil)
		time.Sleep(time.Second)
		assert.Equal(t, int64(10), spentHits(l.primaryCounters, "k", lim))
		probesBefore := probes.Load()
		time.Sleep(time.Minute)
		assert.Equal(t, probesBefore, probes.Load(), "nothing is left to replay")
		assert.Equal(t, int64(10), spentHits(l.primaryCounters, "k", lim))
	})
}

func TestRefundAfterItsTimeIsDropped(t *testing.T) {
	for _, pause := range []time.Duration{time.Second, 61 * time.Minute} { // after 61 minutes, the charge has ended with its window
		synctest.Test(t, func(t *testing.T) {
			l, primary := newFixture(t, nil), &latePrimary{}
			primary.next, l.options.Primary = l.primaryCounters, primary
			time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
			lim := newLimit(t, 100, limit.Hour)
			l.take("k", lim, 60) // the secondary denies the hits, and the primary admits them
			l.options.Primary = l.primary
			l.primary.SetError(errNotSent)
			primary.deliver()
			time.Sleep(pause)
			assert.True(t, takeOne(l.primaryCounters, "k", lim, 10).Allowed)
			l.primary.SetError(nil)
			time.Sleep(2 * maxProbePause)
			assert.Equal(t, int64(10), spentHits(l.primaryCounters, "k", lim), "after %v", pause)
			assert.Zero(t, l.hitsReplayed.Load())
		})
	}
}

func TestReplayLogTakesExactlyItsBound(t *testing.T) {
	lim := newLimit(t, 1000, limit.Year)
	for extra, want := range []int{1, 0} {
		log := &replayLog{bytes: new(atomic.Int64)}
		log.add(make([]byte, maxLogBytes-entryOverhead+extra), loggedCharge{limit: lim, n: 1})
		assert.Equal(t, want == 0, log.isEmpty())
		assert.Len(t, log.takeAll(), want)
		assert.True(t, log.isEmpty())
	}
}

package fallback

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

func newHoldsLimit(t *testing.T, slots uint32) *limit.Limit {
	return newLimit(t, slots, 0, func(s *limit.Spec) {
		s.Algorithm, s.Hold = limit.Concurrency, time.Minute.Microseconds()
	})
}

// takeWithID is fixture.take for a hold with an id.
func (l *fixture) takeWithID(lim *limit.Limit, id string, n int64) backend.Result {
	results := make([]backend.Result, 1)
	l.Limiter.Take(context.Background(), time.Now(), []backend.Hit{{Key: []byte("k"), Limit: lim, N: n, HoldID: id}}, results)
	return results[0]
}

func TestOutageAdmitsAtMostTheShareAsFurtherHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		lim := newHoldsLimit(t, 8)
		for range 8 {
			assert.True(t, l.take("k", lim, 1).Allowed)
		}
		l.openBreakers(lim, "k")
		admittedHolds := 0
		for range 20 {
			if l.take("k", lim, 1).Allowed {
				admittedHolds++
			}
		}
		assert.Equal(t, 4, admittedHolds, "half of the slots")
		l.heal()
		assert.Equal(t, int64(8), spentHits(l.primaryCounters, "k", lim), "holds are not replayed")
	})
}

// takeHoldsBeforeAndInOutage takes a hold of n slots of the counter k before an outage, and another one in the outage.
func (l *fixture) takeHoldsBeforeAndInOutage(t *testing.T, lim *limit.Limit, n int64) {
	assert.True(t, l.take("k", lim, n).Allowed)
	l.openBreakers(lim, "k")
	assert.True(t, l.take("k", lim, n).Allowed)
	l.heal()
}

func TestReleaseAfterAnOutageEndsTheHoldOfTheOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		lim := newHoldsLimit(t, 8)
		l.takeHoldsBeforeAndInOutage(t, lim, 1)
		assert.True(t, l.take("k", lim, -1).Allowed)
		assert.Equal(t, int64(1), spentHits(l.primaryCounters, "k", lim), "the holder from before the outage keeps its slot")
		assert.True(t, l.take("k", lim, -1).Allowed)
		assert.Zero(t, spentHits(l.primaryCounters, "k", lim))
	})
}

func TestHitsOfOneCallWithAReleaseAreDecidedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		lim := newHoldsLimit(t, 8)
		l.openBreakers(lim, "k")
		assert.True(t, l.take("k", lim, 1).Allowed)
		for _, c := range []struct{ hits, remaining []int64 }{
			{[]int64{1, -1}, []int64{2, 3}},
			{[]int64{-1, 1}, []int64{4, 3}},
		} {
			var hits []backend.Hit
			for _, n := range c.hits {
				hits = append(hits, backend.Hit{Key: []byte("k"), Limit: lim, N: n})
			}
			results := make([]backend.Result, len(hits))
			l.Limiter.Take(context.Background(), time.Now(), hits, results)
			for i, got := range results {
				assert.Equal(t, c.remaining[i], got.Remaining, "hit %d of %d", i+1, c.hits)
			}
		}
	})
}

func TestHoldsOfAnOutageAreForgottenAfterTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		lim := newHoldsLimit(t, 8)
		l.openBreakers(lim, "k")
		assert.True(t, l.take("k", lim, 1).Allowed)
		l.heal()
		time.Sleep(time.Minute)
		assert.True(t, l.take("k", lim, 1).Allowed)
		assert.True(t, l.take("k", lim, -1).Allowed)
		assert.Zero(t, spentHits(l.primaryCounters, "k", lim))
		assert.Zero(t, l.lastHoldEnd.Load(), "calls cost nothing more")
	})
}

func TestNamedReleaseAfterAnOutageFreesNoOtherSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		lim := newHoldsLimit(t, 8)
		assert.True(t, l.takeWithID(lim, "before", 1).Allowed)
		l.openBreakers(lim, "k")
		assert.True(t, l.takeWithID(lim, "during", 1).Allowed)
		assert.True(t, l.takeWithID(lim, "before", 1).Allowed, "a renewal during the outage")
		l.heal()
		assert.True(t, l.takeWithID(lim, "during", -1).Allowed)
		assert.Equal(t, int64(1), spentHits(l.primaryCounters, "k", lim))
		assert.True(t, l.takeWithID(lim, "before", 1).HoldExists)
		assert.True(t, l.takeWithID(lim, "before", -1).Allowed)
		assert.Zero(t, spentHits(l.primaryCounters, "k", lim))
	})
}

func TestAnonymousReleaseAfterAnOutageLeavesNamedHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		lim := newHoldsLimit(t, 8)
		assert.True(t, l.take("k", lim, 1).Allowed)
		l.openBreakers(lim, "other")
		assert.True(t, l.take("other", lim, 1).Allowed, "an anonymous hold of another counter")
		assert.True(t, l.takeWithID(lim, "during", 1).Allowed)
		l.heal()
		assert.True(t, l.take("k", lim, -1).Allowed)
		assert.Zero(t, spentHits(l.primaryCounters, "k", lim), "the release goes to the primary")
	})
}

func TestReleaseOfASlotOfTheOutageLooksOnlyAtItsOwnCounter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		lim, window := newHoldsLimit(t, 8), newLimit(t, 100, limit.Year)
		l.takeHoldsBeforeAndInOutage(t, lim, 2)
		for _, otherHit := range []backend.Hit{{Key: []byte("other"), Limit: lim, N: 1}, {Key: []byte("k"), Limit: window, N: 1}} {
			l.Take(t.Context(), time.Now(), []backend.Hit{otherHit, {Key: []byte("k"), Limit: lim, N: -1}}, make([]backend.Result, 2))
			assert.Equal(t, int64(2), spentHits(l.primaryCounters, "k", lim), "the release ends a hold of the outage")
		}
		assert.Zero(t, spentHits(l.secondary, Namespace+"k", l.shareOf(lim)))
	})
}

func TestResetAfterAnOutageGoesToThePrimary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		lim := newHoldsLimit(t, 8)
		l.takeHoldsBeforeAndInOutage(t, lim, 2)
		assert.True(t, l.take("k", lim, -limit.MaxHits).Allowed)
		assert.Zero(t, spentHits(l.primaryCounters, "k", lim))
	})
}

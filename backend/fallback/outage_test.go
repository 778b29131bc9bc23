package fallback

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// recordedBlips returns the blips that r has received.
func (r *recorder) recordedBlips() []Outage {
	r.changesMu.Lock()
	defer r.changesMu.Unlock()
	return append([]Outage(nil), r.blips...)
}

func TestPriceOfAnOutageByMode(t *testing.T) {
	for _, c := range []struct {
		name                                   string
		mode                                   limit.FailureMode
		n                                      int64
		shadow                                 bool
		admittedCalls, admittedHits, maxExcess int64
	}{
		{name: "the share is admitted", n: 1, admittedCalls: 50, admittedHits: 50, maxExcess: 50},
		{name: "several hits in each call", n: 20, admittedCalls: 2, admittedHits: 40, maxExcess: 40},
		{name: "all hits are admitted", mode: limit.FailAllow, n: 3, admittedCalls: 70, admittedHits: 210, maxExcess: 210},
		{name: "no hit is admitted", mode: limit.FailDeny, n: 1},
		{name: "a peek costs nothing", n: 0, admittedCalls: 70},
		{name: "a refund costs nothing", mode: limit.FailDeny, n: -1, admittedCalls: 70},
		{name: "a shadow limit has no excess", n: 1, shadow: true, admittedCalls: 70, admittedHits: 50},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newFixture(t, func(o *Options) { o.Mode = c.mode })
				lim := newLimit(t, 100, limit.Year)
				l.openBreakers(lim, "k") // with peeks
				outageBefore := l.Status().Outage
				for range 70 {
					hits := []backend.Hit{{Key: []byte("k"), Limit: lim, N: c.n, Shadow: c.shadow}}
					l.Take(t.Context(), time.Now(), hits, make([]backend.Result, 1))
				}
				checkPrice := func(o Outage) {
					assert.Equal(t, int64(70), o.Calls-outageBefore.Calls)
					assert.Equal(t, int64(70), o.Decisions-outageBefore.Decisions)
					assert.Equal(t, int64(70), o.ByReason[backend.ReasonBreakerOpen]-outageBefore.ByReason[backend.ReasonBreakerOpen])
					assert.Equal(t, c.admittedCalls, o.AdmittedCalls-outageBefore.AdmittedCalls)
					assert.Equal(t, c.admittedHits, o.AdmittedHits)
					assert.Equal(t, c.maxExcess, o.MaxExcessHits)
					assert.ErrorIs(t, o.Err, backend.ErrUnavailable)
				}
				s := l.Status()
				assert.True(t, s.Down)
				assert.Zero(t, s.Outage.End)
				checkPrice(s.Outage)
				l.heal()
				s = l.Status()
				assert.False(t, s.Down)
				assert.NotZero(t, s.Outage.End)
				checkPrice(s.Outage)
				assert.Equal(t, s.Outage, l.stateChanges()[1].Outage)
				assert.Empty(t, l.recordedBlips())
			})
		})
	}
}

func TestCallIsAdmittedIfNoHitIsDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		l.primary.SetError(errDown)
		allowLimit, denyLimit := newLimit(t, 10, limit.Day), newLimit(t, 0, limit.Day)
		for _, hits := range [][]backend.Hit{
			{{Key: []byte("a"), Limit: allowLimit, N: 1}, {Key: []byte("b"), Limit: allowLimit, N: 1}},
			{{Key: []byte("a"), Limit: allowLimit, N: 1}, {Key: []byte("b"), Limit: denyLimit, N: 1}},
			{{Key: []byte("a"), Limit: allowLimit, N: 1}, {Key: []byte("b"), Limit: denyLimit, N: 1, Shadow: true}},
		} {
			l.Take(t.Context(), time.Now(), hits, make([]backend.Result, 2))
		}
		time.Sleep(blipReportDelay)
		synctest.Wait()
		blip := l.Status().Blip
		assert.Equal(t, int64(3), blip.Calls)
		assert.Equal(t, int64(2), blip.AdmittedCalls)
		assert.Equal(t, int64(6), blip.Decisions)
	})
}

// The price counts only hits of calls that may have passed.
func TestHitsOfDeniedCallsDoNotCountInThePrice(t *testing.T) {
	largeLimit, smallLimit := newLimit(t, 10, limit.Day), newLimit(t, 0, limit.Day)
	allowLimit := newLimit(t, 10, limit.Day, func(s *limit.Spec) { s.OnBackendFailure = limit.FailAllow })
	denyLimit := newLimit(t, 10, limit.Day, func(s *limit.Spec) { s.OnBackendFailure = limit.FailDeny })
	hit := func(lim *limit.Limit, n int64) backend.Hit {
		return backend.Hit{Key: []byte("b"), Limit: lim, N: n, DenialDeniesCall: true} // the primary fails for this key
	}
	ofPrimary := func(h backend.Hit) backend.Hit { h.Key = []byte("a"); return h }
	failed := func(h backend.Hit) backend.Hit { h.Key = []byte("c"); return h }
	inShadowMode := func(h backend.Hit) backend.Hit { h.Shadow, h.DenialDeniesCall = true, false; return h }
	inQuotaMode := func(h backend.Hit) backend.Hit { h.DenialDeniesCall = false; return h }
	allOrNone := func(h backend.Hit) backend.Hit { h.AllOrNone = true; return h }
	type hits = []backend.Hit
	for name, c := range map[string]struct {
		hits                                              hits
		wantDecisions, wantCalls, wantHits, wantMaxExcess int64
	}{
		"no hit is denied":                                  {hits{hit(largeLimit, 3), hit(largeLimit, 2)}, 2, 1, 5, 5},
		"a later hit is denied":                             {hits{hit(largeLimit, 3), hit(smallLimit, 1)}, 2, 0, 0, 0},
		"an earlier hit is denied":                          {hits{hit(smallLimit, 1), hit(largeLimit, 3)}, 2, 0, 0, 0},
		"the primary denies a hit":                          {hits{hit(largeLimit, 3), ofPrimary(hit(smallLimit, 1))}, 1, 0, 0, 0},
		"the primary admits a hit":                          {hits{hit(largeLimit, 3), ofPrimary(hit(largeLimit, 1))}, 1, 1, 3, 3},
		"mode deny beside mode allow":                       {hits{hit(allowLimit, 3), hit(denyLimit, 1)}, 2, 0, 0, 0},
		"a denied hit in shadow mode":                       {hits{hit(largeLimit, 3), inShadowMode(hit(smallLimit, 1))}, 2, 1, 3, 3},
		"an admitted hit in shadow mode":                    {hits{inShadowMode(hit(largeLimit, 3)), hit(smallLimit, 1)}, 2, 0, 0, 0},
		"a denied hit need not deny the call":               {hits{hit(largeLimit, 3), inQuotaMode(hit(smallLimit, 1))}, 2, 0, 3, 3},
		"a denied peek":                                     {hits{hit(largeLimit, 3), hit(denyLimit, 0)}, 2, 0, 0, 0},
		"an admitted peek":                                  {hits{hit(largeLimit, 3), hit(largeLimit, 0)}, 2, 1, 3, 3},
		"a refund beside a denied hit":                      {hits{hit(largeLimit, -3), hit(smallLimit, 1)}, 2, 0, 0, 0},
		"a refund is never denied":                          {hits{hit(largeLimit, 3), hit(denyLimit, -1)}, 2, 1, 3, 3},
		"a hit fails, so nobody knows what the caller does": {hits{hit(largeLimit, 3), hit(smallLimit, 1), failed(hit(largeLimit, 1))}, 2, 0, 3, 3},
		"an all-or-none call":                               {hits{allOrNone(hit(largeLimit, 3)), allOrNone(hit(smallLimit, 1))}, 2, 0, 0, 0},
		"a denied hit outside of the group":                 {hits{allOrNone(hit(largeLimit, 3)), hit(smallLimit, 1)}, 2, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newFixture(t, func(o *Options) { o.Shards, o.ShardOf = 3, func(h *backend.Hit) int { return int(h.Key[0] - 'a') } })
				l.primary.FailHits(func(h backend.Hit) error {
					if h.Key[0] == 'c' {
						return errors.New("the secondary would fail too")
					}
					return failKeysWithB(h)
				})
				l.Take(t.Context(), time.Now(), c.hits, make([]backend.Result, len(c.hits)))
				price := l.counts.Load().price()
				assert.Equal(t, c.wantDecisions, price.Decisions)
				assert.Equal(t, c.wantCalls, price.AdmittedCalls)
				assert.Equal(t, c.wantHits, price.AdmittedHits)
				assert.Equal(t, c.wantMaxExcess, price.MaxExcessHits)
				assert.Equal(t, c.wantMaxExcess, l.Status().MaxExcessHits)
			})
		})
	}
}

// takeRule takes n hits on a limit of the rule. Each hit has its own key.
func (l *fixture) takeRule(t *testing.T, rule string, lim *limit.Limit, n int) {
	for i := range n {
		hits := []backend.Hit{{Key: fmt.Append(nil, rule, lim, i), Limit: lim, Rule: rule, N: 1}}
		l.Take(t.Context(), time.Now(), hits, make([]backend.Result, 1))
	}
}

func TestPriceIsSplitByLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		l.primary.SetError(errDown)
		l.takeRule(t, "shop > tenant", newLimit(t, 10, limit.Day), 5)
		l.takeRule(t, "shop > tenant", newLimit(t, 100, limit.Hour), 5)
		l.takeRule(t, "shop > path", newLimit(t, 0, limit.Hour), 2)
		l.takeRule(t, "shop > tenant", newLimit(t, 10, limit.Day), 3) // after a reload
		time.Sleep(blipReportDelay)
		synctest.Wait()
		require.Len(t, l.recordedBlips(), 1)
		blip := l.recordedBlips()[0]
		assert.Equal(t, []LimitPrice{
			{Rule: "shop > tenant", Limit: "10 per day", Decisions: 8, AdmittedHits: 8, MaxExcessHits: 8},
			{Rule: "shop > tenant", Limit: "100 per hour", Decisions: 5, AdmittedHits: 5, MaxExcessHits: 5},
			{Rule: "shop > path", Limit: "0 per hour", Decisions: 2},
		}, blip.Limits)
		assert.Equal(t, int64(13), blip.MaxExcessHits)
		assert.Equal(t, int64(13), blip.AdmittedHits)
	})
}

func TestPricesOfManyLimitsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		l.primary.SetError(errDown)
		for range maxLimitKeys + 50 { // each request brings its own limit
			l.takeRule(t, "shop > the request's own limit", newLimit(t, 10, limit.Day), 1)
		}
		for n := range maxPricedLimits + 50 {
			l.takeRule(t, fmt.Sprint("rule ", n), newLimit(t, 10, limit.Day), 1)
		}
		assert.Equal(t, maxLimitKeys, l.counts.Load().limitKeyCount)
		assert.Len(t, l.counts.Load().countsOfName, maxPricedLimits+1)
		time.Sleep(blipReportDelay)
		synctest.Wait()
		limits := l.Status().Blip.Limits
		assert.Len(t, limits, maxPricedLimits+1)
		assert.Equal(t, LimitPrice{Rule: OtherRules, Decisions: 51, AdmittedHits: 51, MaxExcessHits: 51}, limits[0])
		assert.Equal(t, int64(maxLimitKeys+50), limits[1].Decisions, limits[1].Rule)
	})
}

func TestBlipsAreReportedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		lim := newLimit(t, 100, limit.Day)
		causeBlip := func(failure error) {
			l.primary.SetError(failure)
			l.take("k", lim, 1)
			l.primary.SetError(nil)
			l.take("k", lim, 1)
		}
		lateError := &backend.Error{Reason: backend.ReasonLate}
		causeBlip(lateError)
		time.Sleep(blipReportDelay)
		synctest.Wait()
		require.Len(t, l.recordedBlips(), 1)
		firstBlip := l.recordedBlips()[0]
		assert.Equal(t, int64(1), firstBlip.ByReason[backend.ReasonLate])
		assert.Equal(t, int64(1), firstBlip.MaxExcessHits)
		assert.Zero(t, firstBlip.Duration(), "the blip has one decision")

		for range 5 {
			causeBlip(errDown)
			time.Sleep(time.Second)
		}
		synctest.Wait()
		assert.Len(t, l.recordedBlips(), 1, "ten seconds between two reports")
		time.Sleep(blipReportPause)
		synctest.Wait()
		require.Len(t, l.recordedBlips(), 2)
		secondBlip := l.recordedBlips()[1]
		assert.Equal(t, int64(5), secondBlip.ByReason[backend.ReasonOutage])
		assert.Equal(t, 4*time.Second, secondBlip.Duration(), "from the first decision to the last")
		assert.Equal(t, []LimitPrice{{Limit: "100 per day", Decisions: 5, AdmittedHits: 5, MaxExcessHits: 5}}, secondBlip.Limits)
		time.Sleep(time.Hour)
		assert.Len(t, l.recordedBlips(), 2, "a quiet time has no report")
		assert.Zero(t, l.Status().Outage.Start)
		assert.Equal(t, int64(len(l.recordedBlips())), l.Status().Blips)
	})
}

func TestBlipThatBecomesAnOutageHasOneReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		lim := newLimit(t, 100, limit.Day)
		l.openBreakers(lim, "k")
		time.Sleep(time.Minute)
		l.heal()
		assert.Empty(t, l.recordedBlips())
		assert.Len(t, l.stateChanges(), 2)
	})
}

// Each hit is in one report: an outage contains an earlier blip only if the blip has no report yet.
func TestOutageContainsABlipWithoutAReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		lim := newLimit(t, 100, limit.Day)
		causeBlip := func() {
			l.primary.SetError(errDown)
			l.take("k", lim, 1)
			l.primary.SetError(nil)
			l.take("k", lim, 1)
		}
		causeBlip()
		time.Sleep(2 * blipReportDelay)
		start := time.Now()
		causeBlip() // the report of this blip comes after ten seconds
		time.Sleep(5 * time.Second)
		l.openBreakers(lim, "k")
		time.Sleep(time.Minute)
		l.heal()
		outage := l.stateChanges()[1].Outage
		assert.Equal(t, start, outage.Start)
		assert.Equal(t, int64(1+minFailures+1), outage.Calls)
		assert.Len(t, l.recordedBlips(), 1)
	})
}

func TestBreakerReportsItsStatesAndTheirTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, func(o *Options) { useTwoShards(o) })
		lim := newLimit(t, 100, limit.Day)
		time.Sleep(time.Minute)
		l.openBreakers(lim, "b")
		openStatus := l.Status().Breakers[1]
		assert.Equal(t, Open, openStatus.State)
		assert.Equal(t, 2*minFailingTime, openStatus.TimeByState[Failing], "until the third failure")
		assert.GreaterOrEqual(t, openStatus.TimeByState[Closed], time.Minute)
		time.Sleep(5 * time.Second)
		assert.Equal(t, openStatus.TimeByState[Open]+5*time.Second, l.Status().Breakers[1].TimeByState[Open])
		l.heal()
		closedStatus := l.Status().Breakers[1]
		assert.Equal(t, Closed, closedStatus.State)
		assert.Equal(t, Closed, l.Status().Breakers[0].State)
		assert.Zero(t, l.Status().Breakers[0].TimeByState[Open])

		require.Len(t, l.breakerLog, 2)
		assert.Equal(t, 1, l.breakerLog[0].Shard)
		assert.True(t, l.breakerLog[0].Open)
		assert.ErrorIs(t, l.breakerLog[0].Err, backend.ErrUnavailable)
		assert.False(t, l.breakerLog[1].Open)
		assert.Equal(t, closedStatus.TimeByState[Open], l.breakerLog[1].OpenTime)
	})
}

func TestReplayLowersThePriceIfCountersWereKept(t *testing.T) {
	for _, c := range []struct {
		name          string
		algorithm     limit.Algorithm
		keepsCounters func(int) bool
		spentBefore   int64 // the hits of 100 that the primary had spent before the outage
		shadow        bool
		wantExcess    int64 // the excess of 50 admitted hits
	}{
		{name: "all hits are within the limit", keepsCounters: keepsAlways, spentBefore: 50, wantExcess: 0},
		{name: "some hits are beyond the limit", keepsCounters: keepsAlways, spentBefore: 70, wantExcess: 20},
		{name: "all hits are beyond the limit", keepsCounters: keepsAlways, spentBefore: 100, wantExcess: 50},
		{name: "counters were lost", keepsCounters: func(int) bool { return false }, spentBefore: 50, wantExcess: 50},
		{name: "the fallback does not know whether counters were kept", spentBefore: 50, wantExcess: 50},
		{name: "counts fall by themselves", algorithm: limit.TokenBucket, keepsCounters: keepsAlways, spentBefore: 50, wantExcess: 50},
		{name: "shadow limit", keepsCounters: keepsAlways, spentBefore: 100, shadow: true, wantExcess: 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newFixture(t, func(o *Options) { o.KeepsCounters = c.keepsCounters })
				lim := newLimit(t, 100, limit.Year, func(s *limit.Spec) { s.Algorithm = c.algorithm })
				l.take("k", lim, c.spentBefore)
				l.openBreakers(lim, "k") // with peeks
				for range 70 {
					hits := []backend.Hit{{Key: []byte("k"), Limit: lim, N: 1, Shadow: c.shadow}}
					l.Take(t.Context(), time.Now(), hits, make([]backend.Result, 1))
				}
				if !c.shadow {
					assert.Equal(t, int64(50), l.Status().Outage.MaxExcessHits, "the fallback knows no price while the outage lasts")
				}
				l.heal()
				outage := l.stateChanges()[1].Outage
				assert.Equal(t, c.wantExcess, outage.MaxExcessHits)
				assert.Equal(t, int64(50), outage.AdmittedHits)
				assert.Equal(t, c.keepsCounters != nil && c.keepsCounters(0), outage.CountersKept)
			})
		})
	}
}

// The replay charges hits of denied calls too. They have no price, so they lower no price.
func TestReplayOfDeniedCallsDoesNotLowerThePrice(t *testing.T) {
	for _, c := range []struct {
		spentBefore int64 // the hits of 100 that the primary had spent before the outage
		wantExcess  int64 // the excess of 20 hits of admitted calls, beside 30 hits of denied calls
	}{
		{spentBefore: 50, wantExcess: 0},
		{spentBefore: 80, wantExcess: 0},
		{spentBefore: 90, wantExcess: 10},
		{spentBefore: 100, wantExcess: 20},
	} {
		t.Run(fmt.Sprint(c.spentBefore), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newFixture(t, func(o *Options) { o.KeepsCounters = keepsAlways })
				lim, smallLimit := newLimit(t, 100, limit.Year), newLimit(t, 40, limit.Year)
				l.take("a", lim, c.spentBefore)
				l.openBreakers(lim, "a") // with peeks
				for range 50 {
					hits := []backend.Hit{{Key: []byte("a"), Limit: lim, N: 1, DenialDeniesCall: true}, {Key: []byte("b"), Limit: smallLimit, N: 1, DenialDeniesCall: true}}
					l.Take(t.Context(), time.Now(), hits, make([]backend.Result, 2))
				}
				l.heal()
				excessOfLimit := map[string]int64{}
				for _, p := range l.stateChanges()[1].Outage.Limits {
					excessOfLimit[p.Limit] = p.MaxExcessHits
				}
				assert.Equal(t, map[string]int64{"100 per year": c.wantExcess, "40 per year": 0}, excessOfLimit)
				assert.Equal(t, c.spentBefore+50, spentHits(l.primaryCounters, "a", lim))
			})
		})
	}
}

func keepsAlways(int) bool { return true }

// The replay lowers the price only by hits that are known to be within the limit.
func TestHitsOfEarlierWindowsKeepTheirPrice(t *testing.T) {
	for name, c := range map[string]struct {
		isDenied     bool  // another limit denies the call with the last 7 hits, so these hits have no price
		refundedHits int64 // the denied hits that the replay refunds after a late answer
	}{
		"admitted call":              {},
		"denied call":                {isDenied: true},
		"denied call, with a refund": {isDenied: true, refundedHits: 7},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newFixture(t, func(o *Options) { o.KeepsCounters = keepsAlways })
				lim := newLimit(t, 100, limit.Minute)
				time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)))
				l.openBreakers(lim, "k")
				l.take("k", lim, 30)
				time.Sleep(time.Minute)
				hits := []backend.Hit{{Key: []byte("k"), Limit: lim, N: 7, DenialDeniesCall: true}}
				if c.isDenied {
					hits = append(hits, backend.Hit{Key: []byte("denied"), Limit: newLimit(t, 0, limit.Minute), N: 1, DenialDeniesCall: true})
				}
				l.Take(t.Context(), time.Now(), hits, make([]backend.Result, len(hits)))
				if c.refundedHits > 0 {
					l.breakers[0].refundLater(&backend.Hit{Key: []byte("k"), Limit: lim, N: c.refundedHits}, time.Now().Add(time.Minute))
				}
				l.heal()
				assert.Equal(t, int64(30), l.stateChanges()[1].Outage.MaxExcessHits)
			})
		})
	}
}

func TestChargeInANewWindowDoesNotLowerThePrice(t *testing.T) {
	lim := newLimit(t, 100, limit.Minute)
	second := time.Second.Microseconds()
	for _, c := range []struct {
		chargeReset, peekReset int64
		want                   int64
	}{
		{30 * second, 30 * second, 0},
		{59 * second, 1 * second, 10}, // the window of the primary has just begun
		{1 * second, 59 * second, 10},
	} {
		e := &loggedCharge{limit: lim, n: 10, counts: &limitCounts{totalExcess: new(atomic.Int64)}, excess: 10}
		e.counts.excessHits.Store(10)
		e.lowerPrice(10, limit.Result{Remaining: 50, ResetAfter: c.chargeReset}, limit.Result{ResetAfter: c.peekReset})
		assert.Equal(t, c.want, e.counts.excessHits.Load())
	}
}

func TestIdleProbeFindsAnOutageWithoutTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, func(o *Options) { o.IdleProbePause = 10 * time.Second })
		time.Sleep(time.Minute)
		assert.InDelta(t, 6, l.primary.Calls(), 2, "probes of a working primary")
		l.primary.SetError(errDown)
		time.Sleep(12*time.Second + time.Second)
		require.True(t, l.isDown())
		require.Len(t, l.stateChanges(), 1)
		assert.ErrorIs(t, l.stateChanges()[0].Outage.Err, errDown)
		assert.Zero(t, l.Status().Outage.Calls)
		l.heal()
		assert.Zero(t, l.stateChanges()[1].Outage.Decisions)
	})
}

func TestIdleProbeIgnoresASingleFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var probes atomic.Int32
		l := newFixture(t, func(o *Options) {
			o.IdleProbePause = 10 * time.Second
			o.Probe = func(context.Context, int) error {
				if probes.Add(1)%2 == 1 {
					return errDown
				}
				return nil
			}
		})
		time.Sleep(time.Minute)
		assert.Greater(t, probes.Load(), int32(8), "a failed probe is repeated")
		assert.Equal(t, Closed, l.Status().Breakers[0].State)
		assert.Empty(t, l.stateChanges())
	})
}

func TestIdleProbesOfManyShardsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var probes [4]atomic.Int64
		newFixture(t, func(o *Options) {
			o.IdleProbePause, o.Shards = 10*time.Second, len(probes)
			o.Probe = func(_ context.Context, shard int) error {
				probes[shard].Add(1)
				return nil
			}
		})
		time.Sleep(10 * time.Minute)
		for shard := range probes {
			assert.InDelta(t, 60, probes[shard].Load(), 10, "shard %d", shard)
		}
	})
}

func TestOverloadIsNoFailureOfAnIdleShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, func(o *Options) {
			o.IdleProbePause = 10 * time.Second
			o.Probe = func(context.Context, int) error { return &backend.Error{Reason: backend.ReasonOverload} }
		})
		time.Sleep(time.Minute)
		assert.Equal(t, Closed, l.Status().Breakers[0].State)
		assert.Empty(t, l.stateChanges())
	})
}

func TestPriceTextNamesThreeLimitsWithExcess(t *testing.T) {
	price := func(rule, limit string, maxExcessHits int64) LimitPrice {
		return LimitPrice{Rule: rule, Limit: limit, MaxExcessHits: maxExcessHits}
	}
	for name, c := range map[string]struct {
		limits []LimitPrice
		want   string
	}{
		"no limit":                    {nil, ""},
		"no excess":                   {[]LimitPrice{price("shop.a", "10 per minute", 0)}, ""},
		"one limit with excess":       {[]LimitPrice{price("shop.a", "10 per minute", 1), price("shop.b", "2 per hour", 0)}, "shop.a (10 per minute): 1"},
		"four limits with excess":     {[]LimitPrice{price("a", "x", 4), price("b", "x", 3), price("c", "x", 2), price("d", "x", 1)}, "a (x): 4; b (x): 3; c (x): 2"},
		"excess of all further rules": {[]LimitPrice{price(OtherRules, "", 12)}, "other (several): 12"},
	} {
		assert.Equal(t, c.want, PriceText(c.limits), name)
	}
}

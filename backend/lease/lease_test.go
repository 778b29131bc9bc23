package lease

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/limit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// perHour returns a fixed window of 10,000 hits an hour with a lease of 100 permits.
func perHour(t *testing.T) *limit.Limit {
	return newLimit(t, limit.Spec{Requests: 10_000, Unit: limit.Hour, ChargeDenied: true, Lease: true})
}

// warmUp sends 200 hits in 0.2 s to r, so that r has permits.
func (r *replica) warmUp(t *testing.T, counters *sharedCounters, lim *limit.Limit) {
	for range 200 {
		require.True(t, r.takeHits(counters, lim, 1).Allowed)
		r.runBackground()
		counters.now = counters.now.Add(time.Millisecond)
	}
	require.Greater(t, r.Stats().Held, int64(10))
	require.Greater(t, r.Stats().SavedTrips, int64(100))
}

// startWithPermits returns shared counters, and a replica that has permits of a limit.
func startWithPermits(t *testing.T, lim *limit.Limit) (*sharedCounters, *replica) {
	counters := newSharedCounters()
	r := newReplica(counters)
	r.warmUp(t, counters, lim)
	return counters, r
}

func TestHitsWithPermitsMakeNoTrip(t *testing.T) {
	lim := perHour(t)
	counters, r := startWithPermits(t, lim)
	tripsBefore, heldBefore := counters.trips, r.Stats().Held
	result := r.takeHits(counters, lim, 3)
	assert.True(t, result.Allowed)
	assert.Equal(t, backend.SourceLease, result.Source)
	assert.Equal(t, lim.Max()-203, result.Remaining, "one replica alone knows the exact number")
	assert.Equal(t, heldBefore-3, r.Stats().Held)
	assert.Equal(t, tripsBefore, counters.trips)
}

func TestRarelyHitCounterTakesNoLease(t *testing.T) {
	for name, pauses := range map[string][]time.Duration{
		"one hit a second":                {time.Second},
		"two hits together, then a pause": {30 * time.Millisecond, 2 * time.Second},
		"seven hits a second":             {time.Second / 7},
	} {
		t.Run(name, func(t *testing.T) {
			lim, counters := perHour(t), newSharedCounters()
			r := newReplica(counters)
			for i := range 100 {
				require.True(t, r.takeHits(counters, lim, 1).Allowed)
				r.runBackground()
				counters.now = counters.now.Add(pauses[i%len(pauses)])
			}
			assert.Equal(t, 100, counters.trips)
		})
	}
}

func TestCallWithMoreHitsThanPermitsAsksForTheRest(t *testing.T) {
	lim := perHour(t)
	counters, r := startWithPermits(t, lim)
	heldPermits, countBefore := r.Stats().Held, counters.count(lim, "k")
	result := r.takeHits(counters, lim, heldPermits+5)
	assert.True(t, result.Allowed)
	assert.Equal(t, lim.Max()-200-heldPermits-5, result.Remaining)
	assert.Equal(t, countBefore+5, counters.count(lim, "k"))
	assert.Zero(t, r.Stats().Held)
}

func TestResetDuringCloseStartsNoWork(t *testing.T) {
	lim := perHour(t)
	counters, r := startWithPermits(t, lim)
	hits := []backend.Hit{{Key: []byte("k"), Limit: lim, N: -limit.MaxHits}}
	results := make([]backend.Result, 1)
	heldReservation := r.reserve(r.micros(counters.now), &hits[0], &results[0], true)
	require.NotNil(t, heldReservation.stripe)
	heldReservation.stripe.isClosed = true
	r.settle(r.micros(counters.now), hits, results, []reservation{heldReservation})
	assert.Empty(t, r.background)
	r.closeAt(counters.now)
	assert.Zero(t, r.Stats().Held)
}

func TestDeniedCallKeepsItsPermits(t *testing.T) {
	lim := perHour(t)
	counters, r := startWithPermits(t, lim)
	heldPermits := r.Stats().Held
	assert.False(t, r.takeHits(counters, lim, lim.Max()).Allowed)
	assert.Equal(t, heldPermits, r.Stats().Held)
}

func TestDeniedHitOfAnAllOrNoneRequestKeepsPermitsOfTheOthers(t *testing.T) {
	lim := perHour(t)
	emptyLimit := newLimit(t, limit.Spec{Unit: limit.Hour})
	for _, allOrNone := range []bool{false, true} {
		counters, r := startWithPermits(t, lim)
		heldPermits := r.Stats().Held
		results := make([]backend.Result, 2)
		r.Take(context.Background(), counters.now, []backend.Hit{{Key: []byte("k"), Limit: lim, N: 1, AllOrNone: allOrNone}, {Key: []byte("other"), Limit: emptyLimit, N: 1, AllOrNone: allOrNone}}, results)
		assert.True(t, results[0].Allowed)
		assert.False(t, results[1].Allowed)
		if allOrNone {
			assert.Equal(t, heldPermits, r.Stats().Held)
			assert.Equal(t, lim.Max()-200, results[0].Remaining)
		} else {
			assert.Equal(t, heldPermits-1, r.Stats().Held)
		}
	}
}

func TestPeekAndRefundCountPermitsAsRemaining(t *testing.T) {
	lim := perHour(t)
	counters, r := startWithPermits(t, lim)
	assert.Equal(t, lim.Max()-200, r.takeHits(counters, lim, 0).Remaining)
	assert.Equal(t, lim.Max()-190, r.takeHits(counters, lim, -10).Remaining)
	peeks := make([]backend.Peek, 1)
	r.Peek(context.Background(), counters.now, []backend.Hit{{Key: []byte("k"), Limit: lim, N: 1}}, peeks)
	assert.Equal(t, lim.Max()-190, peeks[0].Remaining)
}

func TestResetDropsPermitsAndGivesBackTheAllowance(t *testing.T) {
	lim := perHour(t)
	for name, reset := range map[string]func(counters *sharedCounters, r *replica){
		"reset through this replica":    func(counters *sharedCounters, r *replica) { r.takeHits(counters, lim, -limit.MaxHits) },
		"reset through another replica": func(_ *sharedCounters, r *replica) { r.Forget(&backend.Hit{Key: []byte("k"), Limit: lim}) },
		"reset of all counters":         func(_ *sharedCounters, r *replica) { r.Forget(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			counters, r := startWithPermits(t, lim)
			reset(counters, r)
			r.runBackground()
			assert.Zero(t, r.Stats().Held)
			assert.Zero(t, r.Stats().Returned)
			assert.Zero(t, counters.count(lim.LeaseBudget(), Namespace+"k"))
		})
	}
}

func TestIdleReplicaReturnsItsPermits(t *testing.T) {
	lim := perHour(t)
	counters, r := startWithPermits(t, lim)
	heldPermits := r.Stats().Held
	r.Sweep(counters.now.Add(time.Second / 2))
	assert.Equal(t, heldPermits, r.Stats().Held, "the lease is not idle yet")
	counters.now = counters.now.Add(2 * time.Second)
	r.Sweep(counters.now)
	assert.Zero(t, r.Stats().Held)
	assert.Equal(t, heldPermits, r.Stats().Returned)
	assert.Equal(t, int64(200), counters.count(lim, "k"))
	assert.Zero(t, counters.count(lim.LeaseBudget(), Namespace+"k"))
	r.Sweep(counters.now.Add(time.Minute))
	assert.Zero(t, r.Stats().Leases, "the idle lease is forgotten")
}

// A permit is a hit of the old limit. The replica gives the permits back after the limit has changed.
func TestChangedBucketKeepsTheSpentTokens(t *testing.T) {
	newBucket := func(requests, burst uint32) *limit.Limit {
		return newLimit(t, limit.Spec{Unit: limit.Day, Algorithm: limit.TokenBucket, Requests: requests, Burst: burst, Lease: true, LeaseWaste: 0.1})
	}
	for _, test := range []struct {
		name                   string
		oldLimit, changedLimit *limit.Limit
		spentLater             int64 // what another replica spends under the changed limit
		want                   int64 // the spent tokens at the end
	}{
		{"rate raised", newBucket(1000, 1000), newBucket(20_000, 1000), 0, 200},
		{"rate lowered", newBucket(20_000, 1000), newBucket(1000, 1000), 0, 200},
		{"burst raised", newBucket(1000, 1000), newBucket(1000, 10_000), 8000, 8200},
		{"burst lowered", newBucket(1000, 10_000), newBucket(1000, 1000), 0, 200},
		{"rate and burst raised", newBucket(1000, 1000), newBucket(20_000, 10_000), 8000, 8200},
		{"without burst, rate doubled", newBucket(1000, 0), newBucket(2000, 0), 0, 400},
		{"without burst, rate halved", newBucket(2000, 0), newBucket(1000, 0), 0, 100},
	} {
		t.Run(test.name, func(t *testing.T) {
			counters, r := startWithPermits(t, test.oldLimit)
			require.Positive(t, r.Stats().Held)
			r.takeHits(counters, test.changedLimit, 0)
			if test.spentLater > 0 {
				require.True(t, newReplica(counters).takeHits(counters, test.changedLimit, test.spentLater).Allowed)
			}
			r.runBackground()
			require.Zero(t, r.Stats().Held)
			assert.InDelta(t, test.want, test.changedLimit.Spent(r.takeHits(counters, test.changedLimit, 0).Result), 1, "a part of a token counts as a whole token")
		})
	}
}

func TestChangedLimitReturnsPermitsOfTheOldLimit(t *testing.T) {
	lim := perHour(t)
	counters, r := startWithPermits(t, lim)
	equalLimit := perHour(t)
	heldPermits := r.Stats().Held
	assert.Equal(t, backend.SourceLease, r.takeHits(counters, equalLimit, 1).Source, "a reload without a change keeps permits")
	smallLimit := newLimit(t, limit.Spec{Requests: 300, Unit: limit.Hour, ChargeDenied: true, Lease: true})
	assert.Equal(t, backend.SourceRedis, r.takeHits(counters, smallLimit, 1).Source)
	r.runBackground()
	assert.Equal(t, heldPermits-1, r.Stats().Returned)
	assert.Equal(t, int64(202), counters.count(lim, "k"))
}

func TestAnswerToATripForTheOldLimitIsDropped(t *testing.T) {
	lim := perHour(t)
	counters := newSharedCounters()
	r := newReplica(counters)
	for len(r.background) == 0 { // the first trip asks for an allowance
		r.takeHits(counters, lim, 1)
		counters.now = counters.now.Add(time.Millisecond)
	}
	r.takeHits(counters, newLimit(t, limit.Spec{Requests: 300, Unit: limit.Hour, Lease: true}), 1)
	r.runBackground()
	id := r.seeds.ID([]byte("k"), lim.Tag())
	assert.Zero(t, r.stripeOf(id).leases[id].allowance)
	assert.Zero(t, r.Stats().Held)
}

func TestReturnAfterTheWindowChangesNoOtherWindow(t *testing.T) {
	lim := newLimit(t, limit.Spec{Requests: 10_000, Unit: limit.Second, Lease: true})
	counters, r := startWithPermits(t, lim)
	oldCount := counters.count(lim, "k")
	s := r.stripeOf(r.seeds.ID([]byte("k"), lim.Tag()))
	e := s.leases[r.seeds.ID([]byte("k"), lim.Tag())]
	r.returnLater(e, r.micros(counters.now))
	counters.now = counters.now.Add(time.Second)
	counters.take(&backend.Hit{Key: []byte("k"), Limit: lim, N: 50})
	r.runBackground() // the return comes after its window
	assert.Equal(t, int64(50), counters.count(lim, "k"))
	counters.now = counters.now.Add(-time.Second)
	assert.Less(t, counters.count(lim, "k"), oldCount)
}

func TestPermitsAdmitHitsDuringAnOutage(t *testing.T) {
	lim := perHour(t)
	counters, r := startWithPermits(t, lim)
	counters.err = errDown
	for range r.Stats().Held {
		assert.True(t, r.takeHits(counters, lim, 1).Allowed)
	}
	assert.ErrorIs(t, r.takeHits(counters, lim, 1).Err, backend.ErrUnavailable)
}

func TestNoPermitsAreTakenWhileSourceFails(t *testing.T) {
	lim := perHour(t)
	counters, r := startWithPermits(t, lim)
	r.options.IsFailing = func(*backend.Hit) bool { return true }
	for r.Stats().Held > 0 {
		r.takeHits(counters, lim, 1)
	}
	assert.Empty(t, r.background)
}

// Each lost batch lowers the allowance, so the budget also bounds the loss in outages.
func TestPermitsOfAnUnansweredTripCountAsLost(t *testing.T) {
	lim := perHour(t)
	counters, r := startWithPermits(t, lim)
	for r.Stats().Held > 0 && len(r.background) == 0 {
		r.takeHits(counters, lim, 1)
	}
	countBefore := counters.count(lim, "k")
	counters.err, counters.chargesBeforeError = errDown, true
	r.runBackground()
	lostPermits := counters.count(lim, "k") - countBefore
	require.Positive(t, lostPermits)
	counters.err = nil
	counters.now = counters.now.Add(2 * time.Second)
	r.Sweep(counters.now)
	assert.Equal(t, lostPermits, counters.count(lim.LeaseBudget(), Namespace+"k"))
}

func TestBusyReplicaGetsMorePermitsAndLeavesSomeToOthers(t *testing.T) {
	lim := perHour(t)
	counters := newSharedCounters()
	replicas := []*replica{newReplica(counters), newReplica(counters), newReplica(counters)}
	for i := range 3000 {
		for j, r := range replicas {
			if j < 2 || i%100 == 0 { // the last replica gets a hit each 0.1 s
				r.takeHits(counters, lim, 1)
				r.runBackground()
			}
		}
		counters.now = counters.now.Add(time.Millisecond)
	}
	allowanceOf := func(r *replica) int64 {
		id := r.seeds.ID([]byte("k"), lim.Tag())
		return r.stripeOf(id).leases[id].allowance
	}
	firstAllowance, secondAllowance, idleAllowance := allowanceOf(replicas[0]), allowanceOf(replicas[1]), allowanceOf(replicas[2])
	assert.InDelta(t, firstAllowance, secondAllowance, 15)
	assert.Less(t, idleAllowance, firstAllowance/2)
	assert.LessOrEqual(t, firstAllowance+secondAllowance+idleAllowance, lim.MaxLeasePermits())
}

func TestLimiterWithoutPermitsAnswersAsItsNext(t *testing.T) {
	backendtest.RunWrapper(t, func(t *testing.T) backend.Limiter {
		counters := local.New(local.Options{})
		l := New(Options{Next: backend.Counters{Limiter: counters}, Source: counters})
		t.Cleanup(l.Close)
		return l
	})
}

func TestManyCallersAreNeverAdmittedBeyondTheLimit(t *testing.T) {
	lim := newLimit(t, limit.Spec{Requests: 100_000, Unit: limit.Year, Multiplier: 10, ChargeDenied: true, Lease: true, LeaseWaste: 0.1})
	counters := local.New(local.Options{})
	var admittedHits atomic.Int64
	var callers sync.WaitGroup
	var limiters []*Limiter
	for range 3 {
		l := New(Options{Next: backend.Counters{Limiter: counters}, Source: counters})
		limiters = append(limiters, l)
		for range 4 {
			callers.Go(func() {
				results := make([]backend.Result, 1)
				for range 12_000 {
					l.Take(context.Background(), time.Now(), []backend.Hit{{Key: []byte("k"), Limit: lim, N: 1}}, results)
					if results[0].Allowed {
						admittedHits.Add(1)
					}
				}
			})
		}
	}
	callers.Wait()
	savedTrips := int64(0)
	for _, l := range limiters {
		l.Close()
		savedTrips += l.Stats().SavedTrips
	}
	assert.LessOrEqual(t, admittedHits.Load(), lim.Max())
	assert.GreaterOrEqual(t, admittedHits.Load(), lim.Max()-lim.MaxLeasePermits())
	assert.Positive(t, savedTrips)
}

func TestRefilledTokensOfABucketCanBecomePermits(t *testing.T) {
	lim := newLimit(t, limit.Spec{Algorithm: limit.TokenBucket, Requests: 8000, Unit: limit.Second, Lease: true})
	e := newLease(&backend.Hit{Limit: lim}, 0)
	e.rate, e.remaining = 1, 80
	assert.Equal(t, int64(10), e.wantedPermits(0))
	assert.Equal(t, int64(20), e.wantedPermits(10_000), "80 tokens more after 10 ms")
}

func TestFirstAnswerOfTheBudgetSetsTheWindow(t *testing.T) {
	answer := backend.Result{WindowStart: 7, Result: limit.Result{Allowed: true, ResetAfter: 500}}
	for name, c := range map[string]struct {
		budget             backend.Result
		windowEnd          int64 // before the answer
		wantStart, wantEnd int64
	}{
		"first answer": {answer, 0, 7, 1500},
		"later answer": {answer, 1200, 0, 1200},
		"no answer":    {backend.Result{Err: backend.ErrUnavailable}, 0, 0, 0},
	} {
		e := newLease(&backend.Hit{Limit: perHour(t)}, 0)
		e.windowEnd = c.windowEnd
		new(Limiter).applyAnswers(&stripe{}, e, trip{}, 1000, backend.Result{}, c.budget)
		assert.Equal(t, []int64{c.wantStart, c.wantEnd}, []int64{e.windowStart, e.windowEnd}, name)
	}
}

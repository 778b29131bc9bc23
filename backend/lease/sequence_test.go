package lease

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/limit"
)

// sequence makes one call at a time through a replica to real counters, and records each hit that
// reaches the counters.
type sequence struct {
	*replica
	t              require.TestingT
	now            time.Time
	counters       *local.Limiter
	calls          int                        // the number of calls that reached the counters, without background trips
	trips          [][]backend.Hit            // the background trips
	errorOf        func(h *backend.Hit) error // returns the error of a hit, or nil; nil if no hit fails
	fallbackResult *backend.Result            // answers all hits if it is not nil
}

// newSequence returns a sequence. It begins at the start of a window of an hour.
func newSequence(t require.TestingT, o Options) *sequence {
	s := &sequence{t: t, now: epoch.Truncate(time.Hour), counters: local.New(local.Options{})}
	o.Next = backend.Counters{Limiter: backendtest.Func(func(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
		s.calls++
		s.answer(ctx, now, hits, results)
	})}
	o.Source = backendtest.Func(func(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
		trip := make([]backend.Hit, len(hits))
		for i, h := range hits {
			isRefillOfBudget := h.Shadow && strings.HasPrefix(string(h.Key), Namespace)
			assert.True(t, h.N != 0 || isRefillOfBudget, "a trip peeks only at the budget")
			trip[i] = h
			trip[i].Key = append([]byte(nil), h.Key...)
		}
		s.trips = append(s.trips, trip)
		assert.WithinRange(t, now, s.now.Add(-time.Second), s.now, "a trip has the time of the call that needed it")
		s.answer(ctx, now, hits, results)
	})
	s.replica = &replica{Limiter: New(o)}
	s.createdAt = s.now.Add(-time.Hour)
	s.spawn = func(f func()) { s.background = append(s.background, f) }
	return s
}

// answer answers as the counters do. If errorOf returns an error for a hit, the answer has this error, and numbers that the
// replica must not use.
func (s *sequence) answer(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	var passedHits backend.SubBatch
	for i, h := range hits {
		if s.errorOf != nil && s.errorOf(&h) != nil {
			results[i] = backend.Result{Result: limit.Result{Allowed: true, Remaining: 77_777, ResetAfter: 7}, Err: s.errorOf(&h)}
		} else {
			passedHits.Add(i, h)
		}
	}
	passedHits.Take(ctx, now, s.counters)
	passedHits.CopyResults(results)
	for i := range results {
		if s.fallbackResult != nil {
			results[i] = *s.fallbackResult
		}
	}
}

// runBackground runs the waiting background functions. Each function makes one to maxTrips trips.
func (s *sequence) runBackground() {
	for len(s.background) > 0 {
		f := s.background[0]
		s.background = s.background[1:]
		tripsBefore := len(s.trips)
		f()
		assert.Greater(s.t, len(s.trips), tripsBefore, "work in the background makes a trip")
		assert.LessOrEqual(s.t, len(s.trips)-tripsBefore, maxTrips)
	}
}

// advance runs the background work, and then sets the clock forward by d.
func (s *sequence) advance(d time.Duration) {
	s.runBackground()
	s.now = s.now.Add(d)
}

// take makes a call, and returns its answers.
func (s *sequence) take(hits ...backend.Hit) []backend.Result {
	results := make([]backend.Result, len(hits))
	callsBefore, savedTripsBefore := s.calls, s.Stats().SavedTrips
	s.Take(context.Background(), s.now, hits, results)
	assert.Equal(s.t, s.calls == callsBefore, s.Stats().SavedTrips == savedTripsBefore+1, "calls that need no trip are counted")
	return results
}

func (s *sequence) takeHits(lim *limit.Limit, n int64) backend.Result {
	return s.take(backend.Hit{Key: []byte("k"), Limit: lim, N: n})[0]
}

// spentHits returns the spent hits of a shared counter.
func (s *sequence) spentHits(lim *limit.Limit, key string) int64 {
	results := make([]backend.Result, 1)
	s.counters.Take(context.Background(), s.now, []backend.Hit{{Key: []byte(key), Limit: lim}}, results)
	return lim.Spent(results[0].Result)
}

// heldPermits returns the permits that the replica holds of the counter k.
func (s *sequence) heldPermits(lim *limit.Limit) int64 {
	return s.HeldPermits(s.now, &backend.Hit{Key: []byte("k"), Limit: lim})
}

// warmUp sends hits at a rate until the replica has permits.
func (s *sequence) warmUp(lim *limit.Limit, pause time.Duration) (hits int64) {
	for s.heldPermits(lim) < 10 {
		require.Less(s.t, hits, int64(2000), "a busy counter gets permits")
		require.True(s.t, s.takeHits(lim, 1).Allowed)
		hits++
		s.advance(pause)
	}
	return hits
}

// checkPermits compares the permits with the shared counters. admittedHits is the number of hits that were admitted until now.
func (s *sequence) checkPermits(lim *limit.Limit, admittedHits int64) {
	heldPermits, stats := s.heldPermits(lim), s.Stats()
	assert.Equal(s.t, admittedHits+heldPermits, s.spentHits(lim, "k"), "the counter has the admitted hits and the permits")
	budget := s.spentHits(lim.LeaseBudget(), Namespace+"k")
	assert.LessOrEqual(s.t, heldPermits, budget, "permits are part of the allowance")
	assert.LessOrEqual(s.t, budget, lim.MaxLeasePermits())
	assert.Equal(s.t, stats.Taken, stats.Used+stats.Returned+stats.Lapsed+stats.Held, "each permit is used, returned, lapsed or still held")
}

// A single replica gives the same answers as the counters alone, in any sequence of calls.
func TestSingleReplicaAnswersAsTheCountersWould(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lim := newLimit(t, limit.Spec{
			Requests: rapid.SampledFrom([]uint32{40, 300, 5000}).Draw(t, "requests"), Unit: limit.Second,
			Lease: true, LeaseWaste: rapid.SampledFrom([]float64{0.05, 0.5}).Draw(t, "waste"),
		})
		unleasedLimit := newLimit(t, limit.Spec{Requests: 30, Unit: limit.Second})
		s := newSequence(t, Options{})
		directLimiter := local.New(local.Options{})
		call := func(hits ...backend.Hit) {
			wantResults := make([]backend.Result, len(hits))
			directLimiter.Take(context.Background(), s.now, hits, wantResults)
			for i, r := range s.take(hits...) {
				want := wantResults[i]
				assert.Equal(t, want.Allowed, r.Allowed, "%+v", hits[i])
				assert.Equal(t, want.Remaining, r.Remaining, "%+v", hits[i])
				assert.Equal(t, want.ResetAfter, r.ResetAfter, "%+v", hits[i])
				assert.NoError(t, r.Err)
			}
		}
		spentHits := func() int64 {
			results := make([]backend.Result, 1)
			directLimiter.Take(context.Background(), s.now, []backend.Hit{{Key: []byte("k"), Limit: lim}}, results)
			return lim.Spent(results[0].Result)
		}
		for range 30 {
			switch rapid.SampledFrom([]string{"hits", "hits", "hits", "groups", "groups", "refund", "reset", "peek", "pause", "window", "sweep"}).Draw(t, "event") {
			case "hits":
				n := rapid.SampledFrom([]int64{1, 1, 1, 2, 5, lim.Max()/2 + 1, lim.Max(), lim.Max() + 1}).Draw(t, "n")
				for range rapid.IntRange(1, 60).Draw(t, "calls") {
					call(backend.Hit{Key: []byte("k"), Limit: lim, N: n})
					if rapid.Bool().Draw(t, "work") {
						s.runBackground()
					}
					s.now = s.now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "micros")) * time.Microsecond)
					if s.now.UnixMicro()%lim.Period() < 3000 {
						break // a trip can't charge a window that has ended
					}
				}
			case "groups":
				n, isGroup := rapid.Int64Range(1, 20).Draw(t, "n"), rapid.Bool().Draw(t, "group")
				for range rapid.IntRange(1, 20).Draw(t, "calls") {
					hits := []backend.Hit{{Key: []byte("k"), Limit: lim, N: n, AllOrNone: isGroup}, {Key: []byte("last"), Limit: lim, N: 1}, {Key: []byte("other"), Limit: unleasedLimit, N: n, AllOrNone: isGroup}}
					call(hits[:rapid.IntRange(2, 3).Draw(t, "hits")]...)
					s.runBackground()
					if s.now.UnixMicro()%lim.Period() < lim.Period()-10_000 {
						s.now = s.now.Add(4 * time.Millisecond)
					}
				}
			case "refund":
				call(backend.Hit{Key: []byte("k"), Limit: lim, N: -rapid.Int64Range(0, spentHits()).Draw(t, "n")})
			case "reset":
				s.runBackground()
				call(backend.Hit{Key: []byte("k"), Limit: lim, N: -limit.MaxHits})
			case "peek":
				call(backend.Hit{Key: []byte("k"), Limit: lim})
				peeks := make([]backend.Peek, 1)
				s.Peek(context.Background(), s.now, []backend.Hit{{Key: []byte("k"), Limit: lim, N: 3}}, peeks)
				assert.Equal(t, lim.Max()-spentHits(), peeks[0].Remaining)
			case "pause":
				s.advance(time.Duration(rapid.Int64Range(0, 300_000).Draw(t, "micros")) * time.Microsecond)
			case "window":
				s.runBackground()
				s.now = s.now.Truncate(time.Second).Add(time.Second + time.Duration(rapid.Int64Range(0, 1).Draw(t, "micros"))*time.Microsecond)
			case "sweep":
				s.runBackground()
				s.Sweep(s.now)
			}
			s.runBackground()
			s.checkPermits(lim, spentHits())
		}
		s.closeAt(s.now)
		s.checkPermits(lim, spentHits())
		assert.Zero(t, s.Stats().Held)
		assert.Zero(t, s.spentHits(lim.LeaseBudget(), Namespace+"k"))
		call(backend.Hit{Key: []byte("k"), Limit: lim, N: 1})
	})
}

// A bucket refills the tokens of permits before the permits are used. So a lease denies no hit that the bucket would
// admit.
func TestSingleReplicaDeniesNoHitThatTheBucketWouldAdmit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lim := newLimit(t, limit.Spec{
			Algorithm: limit.TokenBucket, Requests: rapid.SampledFrom([]uint32{40, 300, 5000}).Draw(t, "requests"), Unit: limit.Second,
			Burst: rapid.SampledFrom([]uint32{60, 1000}).Draw(t, "burst"), Lease: true, LeaseWaste: rapid.SampledFrom([]float64{0.05, 0.5}).Draw(t, "waste"),
		})
		s := newSequence(t, Options{})
		var bucket limit.State
		for range 15 {
			n := rapid.SampledFrom([]int64{1, 1, 1, 2, 5, lim.Capacity() / 2, lim.Capacity()}).Draw(t, "n")
			pause := time.Duration(rapid.IntRange(0, 3000).Draw(t, "micros")) * time.Microsecond
			for range rapid.IntRange(1, 60).Draw(t, "calls") {
				remaining := lim.Take(&bucket, s.now.UnixMicro(), 0).Remaining
				endedPermits := s.Stats().Held - s.heldPermits(lim) // the window of these permits has ended, and the next hit gives them back
				r := s.takeHits(lim, n)
				if r.Allowed {
					lim.TakeWithChargeDenied(&bucket, s.now.UnixMicro(), n, true)
				} else {
					assert.LessOrEqual(t, remaining-endedPermits, n, "the bucket would admit the denied hit")
				}
				assert.LessOrEqual(t, r.Remaining, lim.Capacity()+lim.MaxLeasePermits())
				assert.GreaterOrEqual(t, r.ResetAfter, int64(0))
				s.advance(pause)
			}
			s.advance(time.Duration(rapid.Int64Range(0, 1_500_000).Draw(t, "pause")) * time.Microsecond)
			if rapid.Bool().Draw(t, "sweep") {
				s.Sweep(s.now)
			}
			stats := s.Stats()
			assert.Equal(t, stats.Taken, stats.Used+stats.Returned+stats.Lapsed+stats.Held, "each permit is used, returned, lapsed or still held")
			assert.LessOrEqual(t, s.heldPermits(lim), s.spentHits(lim.LeaseBudget(), Namespace+"k"))
		}
	})
}

func TestOnlyLimitsWithLeaseGetLeasesUpToMaxLeases(t *testing.T) {
	lim, unleasedLimit := perHour(t), newLimit(t, limit.Spec{Requests: 10_000, Unit: limit.Hour})
	for _, test := range []struct {
		name             string
		limit            *limit.Limit
		n, keys          int
		wantMin, wantMax int64
	}{
		{"fewer keys than maxLeases", lim, 1, 2000, 2000, 2000},
		{"more keys than maxLeases", lim, 1, maxLeases + 30_000, maxLeases, maxLeases + stripeCount},
		{"peeks", lim, 0, 10, 0, 0},
		{"refunds", lim, -1, 10, 0, 0},
		{"limit without a lease", unleasedLimit, 1, 10, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newSequence(t, Options{})
			var hits []backend.Hit
			for i := range test.keys {
				hits = append(hits, backend.Hit{Key: fmt.Append(nil, i), Limit: test.limit, N: int64(test.n)})
			}
			s.take(hits...)
			assert.GreaterOrEqual(t, s.Stats().Leases, test.wantMin)
			assert.LessOrEqual(t, s.Stats().Leases, test.wantMax)
		})
	}
}

func TestOnlyAnswersOfTheCounterChangeTheRemainingHits(t *testing.T) {
	lim := perHour(t)
	s := newSequence(t, Options{})
	admittedHits := s.warmUp(lim, time.Millisecond)
	heldPermits := s.heldPermits(lim)
	s.errorOf = func(*backend.Hit) error { return errDown }
	assert.ErrorIs(t, s.takeHits(lim, heldPermits+1).Err, backend.ErrUnavailable)
	peeks := make([]backend.Peek, 2)
	hits := []backend.Hit{{Key: []byte("k"), Limit: lim}, {Key: []byte("unknown"), Limit: lim}}
	s.Peek(context.Background(), s.now, hits, peeks)
	assert.Equal(t, int64(77_777), peeks[0].Remaining, "an error stays as it is")
	s.errorOf = nil
	s.Peek(context.Background(), s.now, hits, peeks)
	assert.Equal(t, lim.Max()-admittedHits, peeks[0].Remaining)
	assert.Equal(t, lim.Max(), peeks[1].Remaining)

	s.fallbackResult = &backend.Result{Result: limit.Result{Remaining: 5}, Source: backend.SourceFallback}
	assert.Equal(t, int64(5), s.takeHits(lim, heldPermits+1).Remaining, "the fallback knows no permits")
	s.Peek(context.Background(), s.now, hits[:1], peeks[:1])
	assert.Equal(t, int64(5), peeks[0].Remaining)
	s.fallbackResult = nil
	assert.Equal(t, lim.Max()-admittedHits-1, s.takeHits(lim, 1).Remaining, "the last answer of the counter counts")
	unleasedLimit := newLimit(t, limit.Spec{Requests: 10_000, Unit: limit.Hour})
	s.Peek(context.Background(), s.now, []backend.Hit{{Key: []byte("k"), Limit: unleasedLimit}}, peeks[:1])
	assert.Equal(t, unleasedLimit.Max()-s.spentHits(unleasedLimit, "k"), peeks[0].Remaining, "a limit without a lease shows its counter")
}

func TestHeldPermitsEndWithTheirWindow(t *testing.T) {
	lim := perHour(t)
	s := newSequence(t, Options{})
	assert.Zero(t, s.heldPermits(lim))
	s.warmUp(lim, time.Millisecond)
	s.now = epoch.Truncate(time.Hour).Add(time.Hour - time.Microsecond)
	assert.Positive(t, s.heldPermits(lim))
	s.now = s.now.Add(time.Microsecond)
	assert.Zero(t, s.heldPermits(lim))
	peeks := make([]backend.Peek, 1)
	s.Peek(context.Background(), s.now, []backend.Hit{{Key: []byte("k"), Limit: lim}}, peeks)
	assert.Equal(t, lim.Max(), peeks[0].Remaining)
}

func TestPermitsAllowAPeekOfAnEmptyBucket(t *testing.T) {
	lim := newLimit(t, limit.Spec{Algorithm: limit.TokenBucket, Requests: 10_000, Unit: limit.Hour, Lease: true, LeaseWaste: 0.1})
	s := newSequence(t, Options{})
	s.warmUp(lim, time.Millisecond)
	results := make([]backend.Result, 1)
	s.counters.Take(context.Background(), s.now, []backend.Hit{{Key: []byte("k"), Limit: lim, N: lim.Capacity() - s.spentHits(lim, "k")}}, results)
	require.True(t, results[0].Allowed)
	heldPermits := s.heldPermits(lim)
	r := s.takeHits(lim, 0)
	assert.True(t, r.Allowed, "a permit would admit a hit")
	assert.Equal(t, heldPermits, r.Remaining)
	assert.Zero(t, r.RetryAfter)
	require.True(t, s.takeHits(lim, heldPermits).Allowed)
	r = s.takeHits(lim, 0)
	assert.False(t, r.Allowed)
	assert.Positive(t, r.RetryAfter)
}

// A pause follows each failed trip, and each trip that finds the budget spent.
func TestTripsWithoutNewPermitsAreRare(t *testing.T) {
	isBudget := func(h *backend.Hit) bool { return string(h.Key) == Namespace+"k" }
	failHits := func(mustFail func(*backend.Hit) bool) func(*sequence, *limit.Limit) {
		return func(s *sequence, _ *limit.Limit) {
			s.errorOf = func(h *backend.Hit) error {
				if h.Shadow && mustFail(h) {
					return errDown
				}
				return nil
			}
		}
	}
	for _, test := range []struct {
		name              string
		startsWithPermits bool
		change            func(*sequence, *limit.Limit)
		maxTrips          int // the most trips in half a second
	}{
		{"without the first answer of the budget", false, failHits(isBudget), 10},
		{"without an answer of the budget", true, failHits(isBudget), 11},
		{"without an answer of the counter", true, failHits(func(h *backend.Hit) bool { return !isBudget(h) }), 11},
		{"without an answer", true, failHits(func(*backend.Hit) bool { return true }), 11},
		{"with a spent budget", false, func(s *sequence, lim *limit.Limit) {
			s.counters.Take(context.Background(), s.now, []backend.Hit{{Key: []byte(Namespace + "k"), Limit: lim.LeaseBudget(), N: lim.MaxLeasePermits()}}, make([]backend.Result, 1))
		}, 4},
		{"with a budget of one permit", false, func(s *sequence, lim *limit.Limit) {
			s.counters.Take(context.Background(), s.now, []backend.Hit{{Key: []byte(Namespace + "k"), Limit: lim.LeaseBudget(), N: lim.MaxLeasePermits() - 1}}, make([]backend.Result, 1))
		}, 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			lim := perHour(t)
			s := newSequence(t, Options{})
			if test.startsWithPermits {
				s.warmUp(lim, time.Millisecond)
			}
			test.change(s, lim)
			tripsBefore := len(s.trips)
			for range 500 {
				require.True(t, s.takeHits(lim, 1).Allowed)
				s.advance(time.Millisecond)
			}
			assert.LessOrEqual(t, len(s.trips)-tripsBefore, test.maxTrips)
			s.errorOf = nil
			stats := s.Stats()
			assert.Equal(t, stats.Taken, stats.Used+stats.Returned+stats.Lapsed+stats.Held)
		})
	}
}

// permitsOf returns the permits for which a trip asks.
func permitsOf(trip []backend.Hit) (n int64) {
	for _, h := range trip {
		if string(h.Key) == "k" {
			n += h.N
		}
	}
	return n
}

func TestTripsAskForWhatTheCounterNeeds(t *testing.T) {
	for _, rate := range []int64{20, 50, 200, 1000} {
		t.Run(fmt.Sprint(rate, " hits a second"), func(t *testing.T) {
			lim := newLimit(t, limit.Spec{Requests: 1_000_000, Unit: limit.Hour, Lease: true, LeaseWaste: 0.1})
			s := newSequence(t, Options{})
			for i := range 5 * rate {
				tripsBefore := len(s.trips)
				require.True(t, s.takeHits(lim, 1).Allowed)
				s.advance(time.Second / time.Duration(rate))
				for j, trip := range s.trips[tripsBefore:] {
					assert.LessOrEqual(t, permitsOf(trip), rate*5/4, "permits for at most a second")
					if tripsBefore+j == 0 {
						assert.LessOrEqual(t, trip[0].N, lim.MaxLeasePermits()/3+1, "the first trip leaves two thirds to others")
						assert.GreaterOrEqual(t, trip[0].N, rate*3/4)
					}
				}
				if i > 2*rate {
					assert.Positive(t, s.heldPermits(lim), "a refill comes before the permits are used")
				}
			}
			assert.Less(t, int64(s.calls), 2*rate, "permits admit most hits")
			assert.Less(t, len(s.trips), 5*4, "a refill needs few trips")
		})
	}
}

func TestFirstTripLeavesTwoThirdsOfTheBudget(t *testing.T) {
	for _, permits := range []int64{2, 3, 7, 100} {
		lim := newLimit(t, limit.Spec{Requests: uint32(100 * permits), Unit: limit.Hour, Lease: true})
		require.Equal(t, permits, lim.MaxLeasePermits())
		s := newSequence(t, Options{})
		for len(s.trips) == 0 {
			require.True(t, s.takeHits(lim, 1).Allowed)
			s.advance(time.Millisecond)
		}
		require.Len(t, s.trips[0], 1)
		assert.Equal(t, (permits+2)/3, s.trips[0][0].N)
	}
}

func TestPermitsAreAtMostAnEighthOfTheRemainingHits(t *testing.T) {
	for _, a := range []limit.Algorithm{limit.FixedWindow, limit.TokenBucket} {
		t.Run(a.String(), func(t *testing.T) {
			lim := newLimit(t, limit.Spec{Algorithm: a, Requests: 2000, Unit: limit.Hour, Lease: true, LeaseWaste: 0.5})
			s := newSequence(t, Options{})
			maxPermits := int64(0)
			for range 4000 {
				tripsBefore, remaining := len(s.trips), lim.Capacity()-s.spentHits(lim, "k")+1 // before the hit
				s.takeHits(lim, 1)
				s.advance(time.Millisecond)
				for _, trip := range s.trips[tripsBefore:] {
					assert.LessOrEqual(t, permitsOf(trip), remaining/remainingDivisor+1)
					maxPermits = max(maxPermits, permitsOf(trip))
				}
			}
			assert.Greater(t, maxPermits, int64(20))
		})
	}
}

func TestPermitsNearTheEndOfAWindowAreForHitsUntilItsEnd(t *testing.T) {
	lim := newLimit(t, limit.Spec{Requests: 1_000_000, Unit: limit.Minute, Lease: true, LeaseWaste: 0.1})
	s := newSequence(t, Options{})
	s.now = s.now.Add(58 * time.Second)
	for end := s.now.Add(2 * time.Second); s.now.Before(end); {
		tripsBefore := len(s.trips)
		untilEnd := end.Sub(s.now)
		require.True(t, s.takeHits(lim, 1).Allowed)
		s.advance(time.Millisecond)
		for _, trip := range s.trips[tripsBefore:] {
			assert.LessOrEqual(t, permitsOf(trip), int64(untilEnd/time.Millisecond)*5/4)
		}
	}
	assert.Less(t, s.Stats().Held, int64(50), "few permits lapse")
}

func TestBucketGivesPermitsAgainAfterItHasRefilled(t *testing.T) {
	lim := newLimit(t, limit.Spec{Algorithm: limit.TokenBucket, Requests: 3600, Unit: limit.Hour, Lease: true, LeaseWaste: 0.5})
	s := newSequence(t, Options{})
	require.True(t, s.takeHits(lim, lim.Capacity()).Allowed)
	for range 100 {
		s.takeHits(lim, 1)
		s.advance(time.Millisecond)
	}
	assert.Zero(t, s.Stats().Taken, "the bucket is empty")
	s.advance(20 * time.Minute)
	for range 100 {
		s.takeHits(lim, 1)
		s.advance(time.Millisecond)
	}
	assert.Positive(t, s.Stats().Taken)
	assert.Positive(t, s.Stats().Used)
}

// The window ends during a trip for permits. The permits are lost, even if the answer admits them.
func TestPermitsOfATripThatEndsAfterItsWindowLapse(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*sequence, *limit.Limit)
		lapses bool
	}{
		{"the trip is admitted", func(*sequence, *limit.Limit) {}, true},
		{"the trip fails", func(s *sequence, _ *limit.Limit) { s.errorOf = func(*backend.Hit) error { return errDown } }, false},
		{"the trip is denied", func(s *sequence, lim *limit.Limit) {
			s.counters.Take(context.Background(), s.now, []backend.Hit{{Key: []byte("k"), Limit: lim, N: lim.Max() - s.spentHits(lim, "k")}}, make([]backend.Result, 1))
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			lim := perHour(t)
			s := newSequence(t, Options{})
			s.now = s.now.Add(time.Hour - time.Second/2)
			s.warmUp(lim, time.Millisecond)
			for len(s.background) == 0 {
				require.True(t, s.takeHits(lim, 1).Allowed)
			}
			s.now = s.now.Truncate(time.Hour).Add(time.Hour)
			require.True(t, s.takeHits(lim, 1).Allowed)
			statsBefore := s.Stats()
			require.Zero(t, statsBefore.Held)
			test.change(s, lim)
			s.runBackground()
			stats := s.Stats()
			assert.Zero(t, stats.Held)
			assert.Equal(t, test.lapses, stats.Lapsed > statsBefore.Lapsed)
			assert.Equal(t, stats.Taken, stats.Used+stats.Returned+stats.Lapsed)
		})
	}
}

func TestRateIsMeasuredAfterEightHitsAndTwentyMilliseconds(t *testing.T) {
	for _, test := range []struct{ pause, firstTrip time.Duration }{
		{100 * time.Microsecond, 20 * time.Millisecond},
		{time.Millisecond, 20 * time.Millisecond},
		{2500 * time.Microsecond, 20 * time.Millisecond}, // after 8 hits
		{10 * time.Millisecond, 80 * time.Millisecond},
		{100 * time.Millisecond, 800 * time.Millisecond},
	} {
		lim := perHour(t)
		s := newSequence(t, Options{})
		start := s.now
		for s.now.Sub(start) < 2*test.firstTrip && len(s.background) == 0 {
			require.True(t, s.takeHits(lim, 1).Allowed)
			if len(s.background) == 0 {
				s.now = s.now.Add(test.pause)
			}
		}
		assert.Equal(t, test.firstTrip, s.now.Sub(start), "a hit each %v", test.pause)
	}
}

func TestIdleLeaseFirstReturnsItsPermitsAndIsForgottenLater(t *testing.T) {
	lim := perHour(t)
	for _, test := range []struct {
		idleTime time.Duration
		isHeld   bool
		isKnown  bool
	}{
		{time.Second - time.Microsecond, true, true},
		{time.Second, false, true},
		{10*time.Second - time.Microsecond, false, true},
		{10 * time.Second, false, false},
	} {
		s := newSequence(t, Options{})
		s.warmUp(lim, time.Millisecond)
		require.True(t, s.takeHits(lim, 1).Allowed)
		lastTime := s.now
		s.advance(test.idleTime / 2)
		s.now = lastTime.Add(test.idleTime)
		s.Sweep(s.now)
		if test.idleTime > 5*time.Second {
			s.Sweep(s.now) // the next Sweep forgets a lease without permits
		}
		assert.Equal(t, test.isHeld, s.Stats().Held > 0, "%v", test.idleTime)
		assert.Equal(t, test.isKnown, s.Stats().Leases > 0, "%v", test.idleTime)
	}
}

func TestPermitsWhoseReturnFailsStayInTheBudget(t *testing.T) {
	lim := perHour(t)
	s := newSequence(t, Options{})
	s.warmUp(lim, time.Millisecond)
	spentBudget := func() int64 { return s.spentHits(lim.LeaseBudget(), Namespace+"k") }
	for range 500 {
		if s.heldPermits(lim) < spentBudget() {
			s.takeHits(lim, 1)
			s.advance(time.Millisecond)
		}
	}
	heldPermits, budgetBefore := s.heldPermits(lim), spentBudget()
	require.Equal(t, heldPermits, budgetBefore, "a refill has filled the allowance")
	s.errorOf = func(h *backend.Hit) error {
		if string(h.Key) == "k" {
			return errDown
		}
		return nil
	}
	s.closeAt(s.now)
	stats := s.Stats()
	assert.Equal(t, budgetBefore, spentBudget())
	assert.Zero(t, stats.Held)
	assert.Equal(t, stats.Taken, stats.Used+stats.Returned+stats.Lapsed)
	assert.Equal(t, heldPermits, stats.Lapsed)
}

// A refund of hits that the window has not spent removes the charges of permits, and the permits still admit hits.
func TestRefundOfUnspentHitsAdmitsAtMostThePermitsBeyondTheLimit(t *testing.T) {
	lim := perHour(t)
	s := newSequence(t, Options{})
	s.warmUp(lim, time.Millisecond)
	heldPermits := s.heldPermits(lim)
	s.takeHits(lim, -lim.Max())
	require.Zero(t, s.spentHits(lim, "k"))
	admittedHits := int64(0)
	for s.takeHits(lim, 1).Allowed {
		admittedHits++
		s.advance(time.Millisecond)
	}
	assert.Equal(t, lim.Max()+heldPermits, admittedHits)
	assert.LessOrEqual(t, heldPermits, lim.MaxLeasePermits())
	s.now = s.now.Truncate(time.Hour).Add(time.Hour)
	assert.Equal(t, lim.Max()-1, s.takeHits(lim, 1).Remaining, "the next window is exact")
}

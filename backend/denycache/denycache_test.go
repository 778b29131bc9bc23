package denycache

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/limit"
)

// countingLimiter is a Limiter that decides with limit.Limit.Take and counts its hits.
type countingLimiter struct {
	mu        sync.Mutex
	states    map[string]*limit.State
	hits      int
	afterTake func() // runs at the end of each Take
}

func newCountingLimiter() *countingLimiter {
	return &countingLimiter{states: map[string]*limit.State{}}
}

func (c *countingLimiter) Take(_ context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	c.mu.Lock()
	for i, h := range hits {
		c.hits++
		name := h.Limit.Tag() + " " + string(h.Key)
		if c.states[name] == nil {
			c.states[name] = &limit.State{}
		}
		results[i] = backend.Result{Result: h.Limit.Take(c.states[name], now.UnixMicro(), h.N)}
	}
	c.mu.Unlock()
	if c.afterTake != nil {
		c.afterTake()
	}
}

func newLimit(t testing.TB, s limit.Spec) *limit.Limit {
	t.Helper()
	if s.Unit == 0 {
		s.Unit = limit.Hour
	}
	l, err := limit.New(s)
	require.NoError(t, err)
	return l
}

func hit(key string, l *limit.Limit, n int64) backend.Hit {
	return backend.Hit{Key: []byte(key), Limit: l, N: n}
}

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// take calls l.Take at start + elapsed.
func take(l backend.Limiter, elapsed time.Duration, hits ...backend.Hit) []backend.Result {
	results := make([]backend.Result, len(hits))
	l.Take(context.Background(), start.Add(elapsed), hits, results)
	return results
}

func TestEntryIs64Bytes(t *testing.T) {
	assert.Equal(t, uintptr(entryBytes), unsafe.Sizeof(entry{}))
}

func TestEntriesTakeTheMemoryOfTheOptions(t *testing.T) {
	for size, want := range map[int]int{0: 4096, 4096: 4096, 1 << 20: 1 << 20} {
		got := 0
		table := newTable(size)
		for i := range table.stripes {
			got += len(table.stripes[i].sets) * setSize * entryBytes
		}
		assert.Equal(t, want, got)
	}
}

func TestDenialEndsAfterRetryAfter(t *testing.T) {
	for _, a := range rememberedAlgorithms() {
		t.Run(a.String(), func(t *testing.T) {
			nextLimiter := newCountingLimiter()
			l := New(backend.Counters{Limiter: nextLimiter}, Options{})
			lim := newLimit(t, limit.Spec{Algorithm: a, Requests: 2})
			take(l, 0, hit("a", lim, 1))
			take(l, time.Second, hit("a", lim, 1))
			denial := take(l, time.Minute, hit("a", lim, 1))[0]
			require.False(t, denial.Allowed)
			hitsBefore := nextLimiter.hits
			for _, pause := range []time.Duration{0, time.Second - time.Microsecond} {
				got := take(l, time.Minute+pause, hit("a", lim, 1))[0]
				want := denial
				want.Source = backend.SourceDenyCache
				want.RetryAfter -= pause.Microseconds()
				want.ResetAfter -= pause.Microseconds()
				assert.Equal(t, want, got)
			}
			assert.Equal(t, hitsBefore, nextLimiter.hits, "the cache answers")
			assert.True(t, take(l, time.Minute+time.Duration(denial.RetryAfter)*time.Microsecond, hit("a", lim, 1))[0].Allowed)

			assert.True(t, take(l, time.Minute, hit("b", lim, 1))[0].Allowed, "another key")
			otherLimit := newLimit(t, limit.Spec{Algorithm: a, Requests: 2, Multiplier: 2})
			assert.True(t, take(l, time.Minute, hit("a", otherLimit, 1))[0].Allowed, "another window")
		})
	}
}

func TestDenialAnswersOnlyHitsThatAreDeniedToo(t *testing.T) {
	for _, c := range []struct {
		name         string
		algorithm    limit.Algorithm
		chargeDenied bool
		spentHits    int64 // the spent hits of a limit of 10
		deniedHits   int64
		laterHits    int64
		isRemembered bool // whether the cache answers laterHits
	}{
		{"as many hits", limit.SlidingLog, false, 7, 5, 5, true},
		{"more hits", limit.SlidingLog, false, 7, 5, 6, true},
		{"fewer hits, which pass", limit.SlidingLog, false, 7, 5, 3, false},
		{"fewer hits, which may pass earlier", limit.SlidingLog, false, 7, 5, 4, false},
		{"a peek, which passes", limit.SlidingLog, false, 7, 5, 0, false},
		{"a denied peek", limit.SlidingLog, false, 10, 1, 0, true},
		{"one hit after a denied peek", limit.SlidingLog, false, 10, 0, 1, true},
		{"fewer hits after more than the capacity", limit.SlidingLog, false, 7, 11, 5, false},
		{"fewer hits", limit.TokenBucket, false, 7, 5, 4, false},
		{"more hits", limit.TokenBucket, false, 7, 5, 6, true},
		{"more hits", limit.SlidingWindow, false, 7, 5, 6, true},
		{"fewer hits, which are denied too", limit.FixedWindow, false, 7, 5, 4, true},
		{"fewer hits, which pass", limit.FixedWindow, false, 7, 5, 3, false},
		{"a peek at the limit", limit.FixedWindow, false, 10, 1, 0, false},
		{"one hit, and denied hits are charged", limit.FixedWindow, true, 7, 5, 1, true},
		{"a peek, and denied hits are charged", limit.FixedWindow, true, 7, 5, 0, true},
		{"fewer hits, which are denied too", limit.FirstHitWindow, false, 7, 5, 4, true},
		{"a peek at the limit", limit.FirstHitWindow, false, 10, 1, 0, false},
		{"one hit, and denied hits are charged", limit.FirstHitWindow, true, 7, 5, 1, true},
		{"denied hits prolong the denial", limit.SlidingLog, true, 10, 1, 1, false},
		{"denied hits prolong the denial", limit.SlidingWindow, true, 10, 1, 1, false},
		{"denied hits prolong the denial", limit.TokenBucket, true, 10, 1, 1, false},
	} {
		t.Run(fmt.Sprintf("%s/%s", c.algorithm, c.name), func(t *testing.T) {
			nextLimiter := newCountingLimiter()
			l := New(backend.Counters{Limiter: nextLimiter}, Options{})
			lim := newLimit(t, limit.Spec{Algorithm: c.algorithm, Requests: 10, ChargeDenied: c.chargeDenied})
			take(l, 0, hit("a", lim, c.spentHits))
			require.False(t, take(l, 0, hit("a", lim, c.deniedHits))[0].Allowed)
			hitsBefore := nextLimiter.hits
			got := take(l, 0, hit("a", lim, c.laterHits))[0]
			assert.Equal(t, c.isRemembered, nextLimiter.hits == hitsBefore)
			if c.isRemembered {
				assert.False(t, got.Allowed)
				assert.LessOrEqual(t, got.Remaining, int64(0), "the hits that remained at the denial may be spent")
			}
		})
	}
}

func TestRetryAfterIsNeverBeyondTheCapacity(t *testing.T) {
	l := New(backend.Counters{Limiter: newCountingLimiter()}, Options{})
	lim := newLimit(t, limit.Spec{Requests: 2})
	take(l, 0, hit("a", lim, 2))
	take(l, 0, hit("a", lim, 1))
	assert.Equal(t, int64(limit.Never), take(l, 0, hit("a", lim, 3))[0].RetryAfter)
}

func TestRefundTakesEffectAtOnce(t *testing.T) {
	l := New(backend.Counters{Limiter: newCountingLimiter()}, Options{})
	lim := newLimit(t, limit.Spec{Requests: 2})
	take(l, 0, hit("a", lim, 2))
	require.False(t, take(l, 0, hit("a", lim, 1))[0].Allowed)
	got := take(l, 0, hit("a", lim, -1), hit("a", lim, 1))
	assert.True(t, got[1].Allowed)
}

func TestDenialFromBeforeARefundIsNotRemembered(t *testing.T) {
	nextLimiter := newCountingLimiter()
	l := New(backend.Counters{Limiter: nextLimiter}, Options{})
	lim := newLimit(t, limit.Spec{Requests: 2})
	take(l, 0, hit("a", lim, 2))
	nextLimiter.afterTake = func() { // the denial is decided, and the cache does not remember it yet
		nextLimiter.afterTake = nil
		take(l, 0, hit("a", lim, -1))
	}
	require.False(t, take(l, 0, hit("a", lim, 1))[0].Allowed)
	assert.True(t, take(l, 0, hit("a", lim, 1))[0].Allowed)
}

func TestRaisedLimitTakesEffectAtOnce(t *testing.T) {
	for _, raisedSpec := range []limit.Spec{
		{Algorithm: limit.TokenBucket, Requests: 3, Burst: 2},
		{Algorithm: limit.TokenBucket, Requests: 2, Burst: 3},
	} {
		nextLimiter := newCountingLimiter()
		l := New(backend.Counters{Limiter: nextLimiter}, Options{})
		lim := newLimit(t, limit.Spec{Algorithm: limit.TokenBucket, Requests: 2, Burst: 2})
		take(l, 0, hit("a", lim, 2))
		require.False(t, take(l, 0, hit("a", lim, 1))[0].Allowed)
		hitsBefore := nextLimiter.hits
		take(l, 0, hit("a", newLimit(t, raisedSpec), 1))
		assert.Greater(t, nextLimiter.hits, hitsBefore)
	}
	nextLimiter := newCountingLimiter()
	l := New(backend.Counters{Limiter: nextLimiter}, Options{})
	take(l, 0, hit("a", newLimit(t, limit.Spec{Requests: 2}), 2))
	take(l, 0, hit("a", newLimit(t, limit.Spec{Requests: 2}), 1))
	hitsBefore := nextLimiter.hits
	assert.False(t, take(l, 0, hit("a", newLimit(t, limit.Spec{Requests: 1}), 1))[0].Allowed)
	assert.Equal(t, hitsBefore, nextLimiter.hits, "a lowered limit is denied too")
}

func TestClockSetBackDropsDenials(t *testing.T) {
	nextLimiter := newCountingLimiter()
	l := New(backend.Counters{Limiter: nextLimiter}, Options{})
	lim := newLimit(t, limit.Spec{Requests: 1})
	take(l, time.Minute, hit("a", lim, 1))
	take(l, time.Minute, hit("a", lim, 1))
	hitsBefore := nextLimiter.hits
	take(l, 0, hit("a", lim, 1))
	assert.Greater(t, nextLimiter.hits, hitsBefore)
}

// recorder is an Observer that keeps the keys of denied hits.
type recorder struct{ deniedKeys []string }

func (r *recorder) Denied(h *backend.Hit) { r.deniedKeys = append(r.deniedKeys, string(h.Key)) }

func TestOnlyUndecidedHitsGoToTheBackend(t *testing.T) {
	nextLimiter, events := newCountingLimiter(), new(recorder)
	l := New(backend.Counters{Limiter: nextLimiter}, Options{Observer: events})
	lim := newLimit(t, limit.Spec{Requests: 1})
	take(l, 0, hit("a", lim, 1))
	take(l, 0, hit("a", lim, 1))
	hitsBefore := nextLimiter.hits
	got := take(l, 0, hit("b", lim, 1), hit("a", lim, 1), hit("c", lim, 1))
	assert.Equal(t, hitsBefore+2, nextLimiter.hits)
	assert.True(t, got[0].Allowed)
	assert.False(t, got[1].Allowed)
	assert.True(t, got[2].Allowed)
	assert.Equal(t, []string{"a"}, events.deniedKeys)
}

func TestErrorsAreNotRemembered(t *testing.T) {
	flaky := backendtest.NewFlaky(newCountingLimiter())
	l := New(backend.Counters{Limiter: flaky}, Options{})
	lim := newLimit(t, limit.Spec{Requests: 1})
	flaky.SetError(backend.ErrUnavailable)
	assert.ErrorIs(t, take(l, 0, hit("a", lim, 1))[0].Err, backend.ErrUnavailable)
	flaky.SetError(nil)
	assert.True(t, take(l, 0, hit("a", lim, 1))[0].Allowed)
}

func TestDegradedDenialIsNotCached(t *testing.T) {
	isDown := true
	l := New(backend.Counters{Limiter: backendtest.Func(func(_ context.Context, _ time.Time, hits []backend.Hit, results []backend.Result) {
		results[0] = backend.Result{Result: limit.Result{Allowed: !isDown, RetryAfter: 1000}}
		if isDown {
			results[0].Source = backend.SourceFallback
		}
	})}, Options{})
	lim := newLimit(t, limit.Spec{Requests: 1})
	require.False(t, take(l, 0, hit("a", lim, 1))[0].Allowed)
	isDown = false
	assert.True(t, take(l, 0, hit("a", lim, 1))[0].Allowed)
}

func TestAllOrNoneChargesNothingIfTheCacheDeniesOneHit(t *testing.T) {
	for _, a := range rememberedAlgorithms() {
		t.Run(a.String(), func(t *testing.T) {
			nextLimiter := newCountingLimiter()
			l := New(backend.Counters{Limiter: nextLimiter}, Options{})
			limitOf1, limitOf10 := newLimit(t, limit.Spec{Algorithm: a, Requests: 1}), newLimit(t, limit.Spec{Algorithm: a, Requests: 10})
			take(l, 0, hit("one", limitOf1, 1))
			require.False(t, take(l, 0, hit("one", limitOf1, 1))[0].Allowed)
			take(l, 0, hit("ten", limitOf10, 6))
			shadow := hit("shadow", limitOf10, 1)
			shadow.Shadow = true

			hitsBefore := nextLimiter.hits
			groupHit := func(key string, lim *limit.Limit, n int64) backend.Hit {
				h := hit(key, lim, n)
				h.AllOrNone = true
				return h
			}
			got := take(l, 0, groupHit("ten", limitOf10, 4), groupHit("one", limitOf1, 1), groupHit("ten", limitOf10, 5), shadow, groupHit("other", limitOf10, 11))
			assert.Equal(t, hitsBefore+4, nextLimiter.hits)
			assert.True(t, got[0].Allowed)
			assert.Equal(t, int64(4), got[0].Remaining, "the hit is not charged")
			assert.False(t, got[1].Allowed)
			assert.False(t, got[2].Allowed)
			assert.Positive(t, got[2].RetryAfter)
			assert.Equal(t, int64(9), got[3].Remaining, "shadow hits are charged")
			assert.Equal(t, int64(limit.Never), got[4].RetryAfter)
			assert.Equal(t, int64(4), take(l, 0, hit("ten", limitOf10, 0))[0].Remaining)

			// A shadow hit that the cache denies doesn't stop other charges.
			shadow = hit("one", limitOf1, 1)
			shadow.Shadow = true
			got = take(l, 0, shadow, hit("ten", limitOf10, 1))
			assert.False(t, got[0].Allowed)
			assert.Equal(t, int64(3), got[1].Remaining)
		})
	}
}

// With one caller, the cache must never change a decision.
func TestRandomHitsAreAnsweredAsByTheWrappedLimiter(t *testing.T) {
	for _, a := range limit.Algorithms() {
		t.Run(a.String(), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(1, uint64(a)))
			directLimiter, l := newCountingLimiter(), New(backend.Counters{Limiter: newCountingLimiter()}, Options{})
			limits := []*limit.Limit{newLimit(t, limit.Spec{Algorithm: a, Requests: 5}), newLimit(t, limit.Spec{Algorithm: a, Requests: 8}), newLimit(t, limit.Spec{Algorithm: a, Requests: 5})}
			var moment time.Duration
			for range 5000 {
				moment += time.Duration(rnd.Int64N(int64(5 * time.Minute)))
				h := hit(fmt.Sprint(rnd.IntN(3)), limits[rnd.IntN(3)], rnd.Int64N(9)-2)
				want, got := take(directLimiter, moment, h)[0], take(l, moment, h)[0]
				require.Equal(t, want.Allowed, got.Allowed)
				if h.N <= 1 {
					require.LessOrEqual(t, got.RetryAfter, max(want.RetryAfter, 0))
				}
			}
		})
	}
}

func TestFullCacheEvictsTheDenialThatEndsFirst(t *testing.T) {
	nextLimiter := newCountingLimiter()
	l := New(backend.Counters{Limiter: nextLimiter}, Options{SizeBytes: 1})
	lim := newLimit(t, limit.Spec{Requests: 1})
	take(l, 0, hit("a", lim, 1))
	take(l, 0, hit("a", lim, 1))
	minuteLimit := newLimit(t, limit.Spec{Requests: 1, Unit: limit.Minute})
	for i := range 1000 {
		take(l, 0, hit(fmt.Sprint(i), minuteLimit, 1))
		take(l, 0, hit(fmt.Sprint(i), minuteLimit, 1))
	}
	hitsBefore := nextLimiter.hits
	take(l, 0, hit("a", lim, 1))
	assert.Equal(t, hitsBefore, nextLimiter.hits)
	denials := 0
	for _, set := range l.table.stripes[0].sets {
		for _, e := range set {
			if e.end > 0 {
				denials++
			}
		}
	}
	assert.Len(t, l.table.stripes, 1)
	assert.Equal(t, 4096/entryBytes, denials, "the cache is full")
}

func TestConcurrentCallersDontRace(t *testing.T) {
	l := New(backend.Counters{Limiter: newCountingLimiter()}, Options{SizeBytes: 4096})
	lim := newLimit(t, limit.Spec{Requests: 3})
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			for j := range 500 {
				take(l, 0, hit(fmt.Sprint(j%50), lim, int64((i+j)%4-1)), hit(fmt.Sprint(j%7), lim, 1))
			}
		})
	}
	callers.Wait()
}

func BenchmarkDenied(b *testing.B) {
	l := New(backend.Counters{Limiter: newCountingLimiter()}, Options{SizeBytes: 1 << 20})
	lim := newLimit(b, limit.Spec{Requests: 1})
	take(l, 0, hit("a", lim, 1))
	take(l, 0, hit("a", lim, 1))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		hits, results := []backend.Hit{hit("a", lim, 1)}, make([]backend.Result, 1)
		for pb.Next() {
			l.Take(context.Background(), start, hits, results)
		}
	})
}

func TestDenialOfTooManyHitsLastsUntilTheWindowEnds(t *testing.T) {
	for _, c := range []struct {
		name                string
		spec                limit.Spec
		firstHits, nextHits int64
		isRemembered        bool
	}{
		{"charged hits", limit.Spec{Requests: 10, ChargeDenied: true}, 11, 1, true},
		{"limit of 0", limit.Spec{ChargeDenied: true}, 1, 1, true},
		{"as many uncharged hits", limit.Spec{Requests: 10}, 11, 11, true},
		{"fewer uncharged hits", limit.Spec{Requests: 10}, 11, 1, false},
		{"sliding_log", limit.Spec{Algorithm: limit.SlidingLog, Requests: 10}, 11, 11, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, lim := New(backend.Counters{Limiter: newCountingLimiter()}, Options{SizeBytes: 1 << 16}), newLimit(t, c.spec)
			assert.False(t, take(l, 0, hit("k", lim, c.firstHits))[0].Allowed)
			got := take(l, time.Millisecond, hit("k", lim, c.nextHits))[0]
			assert.Equal(t, c.isRemembered, got.Source == backend.SourceDenyCache)
			assert.NotEqual(t, backend.SourceDenyCache, take(l, time.Hour, hit("k", lim, c.nextHits))[0].Source)
		})
	}
}

// rememberedAlgorithms returns the algorithms with denials that the cache remembers.
func rememberedAlgorithms() []limit.Algorithm {
	return slices.DeleteFunc(limit.Algorithms(), limit.Algorithm.HasHolds)
}

func TestDenialsOfHoldsAreNotRemembered(t *testing.T) {
	nextLimiter := newCountingLimiter()
	l := New(backend.Counters{Limiter: nextLimiter}, Options{})
	lim := newLimit(t, limit.Spec{Algorithm: limit.Concurrency, Requests: 1})
	take(l, 0, hit("a", lim, 1))
	require.False(t, take(l, 0, hit("a", lim, 1))[0].Allowed)
	take(nextLimiter, 0, hit("a", lim, -1)) // a refund through another replica
	assert.True(t, take(l, 0, hit("a", lim, 1))[0].Allowed)
}

// For hits of a denied group, the cache sends a peek. The wait in the answer is only an upper bound.
func TestDenialOfHitsThatWereOnlyPeekedIsNotRemembered(t *testing.T) {
	nextLimiter := newCountingLimiter()
	l := New(backend.Counters{Limiter: nextLimiter}, Options{})
	limitOf1 := newLimit(t, limit.Spec{Requests: 1})
	limitOf10 := newLimit(t, limit.Spec{Algorithm: limit.SlidingLog, Requests: 10})
	take(l, 0, hit("one", limitOf1, 1), hit("ten", limitOf10, 5))
	require.False(t, take(l, 30*time.Minute, hit("one", limitOf1, 1), hit("ten", limitOf10, 5))[0].Allowed)
	group := []backend.Hit{hit("one", limitOf1, 1), hit("ten", limitOf10, 3)}
	for i := range group {
		group[i].AllOrNone = true
	}
	got := take(l, 30*time.Minute, group...)
	require.Equal(t, backend.SourceDenyCache, got[0].Source)
	require.Equal(t, time.Hour.Microseconds(), got[1].RetryAfter)
	assert.Equal(t, (30 * time.Minute).Microseconds(), take(l, 30*time.Minute, hit("ten", limitOf10, 3))[0].RetryAfter)
}

func TestErrorWithARetryTimeIsNotRemembered(t *testing.T) {
	lim, calls := newLimit(t, limit.Spec{Requests: 1}), 0
	l := New(backend.Counters{Limiter: backendtest.Func(func(_ context.Context, _ time.Time, _ []backend.Hit, results []backend.Result) {
		calls++
		results[0] = backend.Result{Err: backend.ErrUnavailable, Result: limit.Result{RetryAfter: 1e9, ResetAfter: 1e9}}
	})}, Options{})
	for range 2 {
		assert.Error(t, take(l, 0, hit("a", lim, 1))[0].Err)
	}
	assert.Equal(t, 2, calls)
}

func TestDenialAfterAnUngroupedHitOfTheCounterIsRemembered(t *testing.T) {
	l, lim := New(backend.Counters{Limiter: newCountingLimiter()}, Options{}), newLimit(t, limit.Spec{Requests: 1})
	groupHit := hit("b", lim, 1)
	groupHit.AllOrNone = true
	require.False(t, take(l, 0, groupHit, hit("a", lim, 1), hit("a", lim, 1))[2].Allowed)
	assert.Equal(t, backend.SourceDenyCache, take(l, 0, hit("a", lim, 1))[0].Source)
}

func TestDenialOfAShadowHitBesideADeniedGroupIsRemembered(t *testing.T) {
	l, lim := New(backend.Counters{Limiter: newCountingLimiter()}, Options{}), newLimit(t, limit.Spec{Requests: 1})
	take(l, 0, hit("one", lim, 1), hit("shadow", lim, 1))
	take(l, 0, hit("one", lim, 1))
	groupHit, shadowHit := hit("one", lim, 1), hit("shadow", lim, 1)
	groupHit.AllOrNone, shadowHit.Shadow = true, true
	got := take(l, 0, groupHit, shadowHit)
	require.Equal(t, backend.SourceDenyCache, got[0].Source)
	require.Equal(t, backend.SourceLocal, got[1].Source)
	assert.Equal(t, backend.SourceDenyCache, take(l, 0, shadowHit)[0].Source)
}

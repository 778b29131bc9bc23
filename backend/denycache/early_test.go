package denycache

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/limit"
)

// A refund through another replica makes room, but the cache notices it later.
func TestRefundElsewhereTakesEffectWithinTheTimeOfTheDenialOrASecond(t *testing.T) {
	for _, a := range rememberedAlgorithms() {
		for _, denialTime := range []time.Duration{0, time.Millisecond, time.Second, 10 * time.Second, time.Hour} {
			nextLimiter := newCountingLimiter()
			l, lim := New(backend.Counters{Limiter: nextLimiter}, Options{}), newLimit(t, limit.Spec{Algorithm: a, Requests: 1, Unit: limit.Day})
			take(l, 0, hit("a", lim, 1))
			step := max(denialTime/100, 10*time.Millisecond)
			moment := time.Duration(0)
			for ; moment < denialTime; moment += step {
				require.False(t, take(l, moment, hit("a", lim, 1))[0].Allowed)
			}
			require.False(t, take(l, denialTime, hit("a", lim, 1))[0].Allowed)
			take(nextLimiter, denialTime, hit("a", lim, -1))
			for moment = denialTime; !take(l, moment, hit("a", lim, 1))[0].Allowed; moment += step {
				require.LessOrEqual(t, moment, denialTime+max(denialTime, time.Second), "%v, denied for %v", a, denialTime)
			}
		}
	}
}

func TestCounterThatHasAdmittedAHitIsAskedAgainAfterASecond(t *testing.T) {
	nextLimiter := newCountingLimiter()
	l, lim := New(backend.Counters{Limiter: nextLimiter}, Options{}), newLimit(t, limit.Spec{Algorithm: limit.SlidingLog, Requests: 1, Unit: limit.Day})
	take(l, 0, hit("a", lim, 1))
	for moment := time.Duration(0); moment <= time.Minute; moment += time.Second {
		require.False(t, take(l, moment, hit("a", lim, 1))[0].Allowed)
	}
	take(nextLimiter, time.Minute, hit("a", lim, -1))
	require.True(t, take(l, 3*time.Minute, hit("a", lim, 1))[0].Allowed)
	require.False(t, take(l, 4*time.Minute, hit("a", lim, 1))[0].Allowed)
	take(nextLimiter, 4*time.Minute, hit("a", lim, -1))
	assert.True(t, take(l, 4*time.Minute+time.Second, hit("a", lim, 1))[0].Allowed)
}

func TestDeniedCounterIsAskedRarely(t *testing.T) {
	nextLimiter := newCountingLimiter()
	l, lim := New(backend.Counters{Limiter: nextLimiter}, Options{}), newLimit(t, limit.Spec{Requests: 1, Unit: limit.Day})
	for moment := time.Duration(0); moment < 24*time.Hour; moment += time.Second {
		take(l, moment, hit("a", lim, 1))
	}
	assert.LessOrEqual(t, nextLimiter.hits, 20)
}

func TestDenialThatMayEndEarlyIsNotRemembered(t *testing.T) {
	lim := newLimit(t, limit.Spec{Requests: 1, Unit: limit.Day})
	callCount, mayEndEarly := 0, true
	l := New(backend.Counters{Limiter: backendtest.Func(func(_ context.Context, _ time.Time, _ []backend.Hit, results []backend.Result) {
		callCount++
		results[0] = backend.Result{Source: backend.SourceRedis, DenialMayEndEarly: mayEndEarly, Result: lim.ResultFromPeek(limit.Result{ResetAfter: 1e9}, 1)}
	})}, Options{})
	take(l, 0, hit("a", lim, 1))
	take(l, 0, hit("a", lim, 1))
	mayEndEarly = false
	take(l, 0, hit("a", lim, 1))
	assert.Equal(t, 3, callCount)
	assert.Equal(t, backend.SourceDenyCache, take(l, 0, hit("a", lim, 1))[0].Source)
	assert.Equal(t, 3, callCount)
}

func TestDenialAfterAnotherHitOfTheGroupIsNotRemembered(t *testing.T) {
	for _, a := range rememberedAlgorithms() {
		nextLimiter := backendtest.AllOrNone(newCountingLimiter()) // it charges one hit after the other; the test needs only DenialMayEndEarly
		l, lim := New(backend.Counters{Limiter: nextLimiter}, Options{}), newLimit(t, limit.Spec{Algorithm: a, Requests: 2, Unit: limit.Day})
		groupHit := hit("a", lim, 2)
		groupHit.AllOrNone = true
		require.False(t, take(l, 0, groupHit, groupHit)[1].Allowed)
		assert.NotEqual(t, backend.SourceDenyCache, take(l, 0, hit("a", lim, 2))[0].Source, a)
		assert.Equal(t, backend.SourceDenyCache, take(l, 0, hit("a", lim, 2))[0].Source, a)
	}
}

func TestFirstDenialIsRememberedForASecondDespiteEarlierEntries(t *testing.T) {
	for name, prepare := range map[string]func(*Limiter, *limit.Limit){
		"a denial of another counter was evicted": func(l *Limiter, lim *limit.Limit) {
			for i := range 1000 {
				take(l, 0, hit(fmt.Sprint(i), lim, 1), hit(fmt.Sprint(i), lim, 1))
			}
		},
		"an earlier denial ended just now": func(l *Limiter, lim *limit.Limit) {
			nextLimiter := l.next
			defer func() { l.next = nextLimiter }()
			l.next = backend.Counters{Limiter: backendtest.Func(func(_ context.Context, _ time.Time, _ []backend.Hit, results []backend.Result) {
				results[0] = backend.Result{Result: lim.ResultFromPeek(limit.Result{ResetAfter: 30e6}, 1)}
			})}
			take(l, 0, hit("a", lim, 1))
		},
		"a later denial was uncertain": func(l *Limiter, lim *limit.Limit) {
			nextLimiter := l.next
			defer func() { l.next = nextLimiter }()
			for i, mayEndEarly := range []bool{false, true} {
				l.next = backend.Counters{Limiter: backendtest.Func(func(_ context.Context, _ time.Time, _ []backend.Hit, results []backend.Result) {
					results[0] = backend.Result{DenialMayEndEarly: mayEndEarly, Result: lim.ResultFromPeek(limit.Result{ResetAfter: 1e9}, 1)}
				})}
				take(l, time.Duration(2*i)*time.Second, hit("a", lim, 1))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			nextLimiter := newCountingLimiter()
			l, lim := New(backend.Counters{Limiter: nextLimiter}, Options{SizeBytes: 1}), newLimit(t, limit.Spec{Requests: 1})
			prepare(l, lim)
			take(nextLimiter, 0, hit("a", lim, 1))
			const laterTime = 30 * time.Second
			require.False(t, take(l, laterTime, hit("a", lim, 1))[0].Allowed)
			assert.Equal(t, backend.SourceDenyCache, take(l, laterTime+time.Second-1000, hit("a", lim, 1))[0].Source)
			assert.Equal(t, backend.SourceLocal, take(l, laterTime+time.Second, hit("a", lim, 1))[0].Source)
		})
	}
}

func TestAsManyHitsAsTheCapacityCanPassLater(t *testing.T) {
	l, lim := New(backend.Counters{Limiter: newCountingLimiter()}, Options{}), newLimit(t, limit.Spec{Requests: 10})
	take(l, 0, hit("a", lim, 7), hit("a", lim, 5))
	for n, want := range map[int64]int64{5: time.Hour.Microseconds(), 10: time.Hour.Microseconds(), 11: limit.Never} {
		got := take(l, 0, hit("a", lim, n))[0]
		assert.Equal(t, backend.SourceDenyCache, got.Source)
		assert.Equal(t, want, got.RetryAfter, n)
	}
}

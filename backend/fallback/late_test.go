package fallback

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/limit"
)

// latePrimary answers each hit too late: each Take fails, and deliver delivers the answers.
type latePrimary struct {
	next       backend.Limiter
	deliveries []func() // each function delivers the answer to one hit
}

func (p *latePrimary) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	for i, h := range hits {
		lateError := backend.NewLateError(&backend.Error{Reason: backend.ReasonLate})
		answer := make([]backend.Result, 1)
		p.next.Take(ctx, now, []backend.Hit{h}, answer)
		p.deliveries = append(p.deliveries, func() { lateError.SetAnswer(answer[0]) })
		results[i] = backend.Result{Err: lateError}
	}
}

func (p *latePrimary) deliver() {
	for _, f := range p.deliveries {
		f()
	}
	p.deliveries = nil
}

func TestLateAnswerCorrectsChargesAndPrice(t *testing.T) {
	for name, c := range map[string]struct {
		mode                                   limit.FailureMode
		spentBefore                            int64 // the spent hits of the primary before the late hit
		n                                      int64
		answerError                            error
		wantPrimary, wantSecondary, wantExcess int64 // the spent hits of the primary and of the secondary, and the excess
	}{
		"within the limit":             {limit.FailLocal, 10, 5, nil, 15, 0, 0},
		"beyond the limit":             {limit.FailLocal, 98, 5, nil, 98, 5, 5},
		"answer is lost":               {limit.FailLocal, 10, 5, backend.ErrUnavailable, 15, 5, 5},
		"hit was never sent":           {limit.FailLocal, 10, 5, errNotSent, 15 + 5, 5, 5},
		"secondary denies":             {limit.FailLocal, 10, 60, nil, 10, 0, 0},
		"mode allow":                   {limit.FailAllow, 10, 5, nil, 15, 0, 0},
		"mode allow, beyond the limit": {limit.FailAllow, 98, 5, nil, 98, 0, 5},
		"mode deny":                    {limit.FailDeny, 10, 5, nil, 10, 0, 0},
		"mode deny, never sent":        {limit.FailDeny, 10, 5, errNotSent, 15, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, primary := newFixture(t, nil), &latePrimary{}
				l.options.Primary = primary
				primary.next = backendtest.Func(func(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
					l.primary.Take(ctx, now, hits, results)
					results[0].Err = c.answerError
				})
				lim := newLimit(t, 100, limit.Year, func(s *limit.Spec) { s.OnBackendFailure = c.mode })
				takeOne(l.primaryCounters, "k", lim, c.spentBefore)
				l.take("k", lim, c.n)
				l.options.Primary = l.primary // for the replay
				primary.deliver()
				time.Sleep(time.Second)
				assert.Equal(t, c.wantPrimary, spentHits(l.primaryCounters, "k", lim), "in the primary")
				assert.Equal(t, c.wantSecondary, spentHits(l.secondary, Namespace+"k", l.shareOf(lim)), "in the secondary")
				assert.Equal(t, c.wantExcess, l.Status().MaxExcessHits)
			})
		})
	}
}

func TestHitsThatWereNeverSentAreReplayedWithoutAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, func(o *Options) { o.KeepsCounters = func(int) bool { return true } })
		lim := newLimit(t, 100, limit.Year)
		takeOne(l.primaryCounters, "k", lim, 90)
		l.primary.SetError(&backend.Error{Reason: backend.ReasonOverload, NotSent: true, Cause: errors.New("queue is full")})
		for range 30 {
			assert.True(t, l.take("k", lim, 1).Allowed)
		}
		assert.Equal(t, int64(30), l.Status().MaxExcessHits)
		time.Sleep(time.Second)
		assert.Equal(t, int64(90), spentHits(l.primaryCounters, "k", lim), "the queue is still full")
		l.primary.SetError(nil)
		time.Sleep(time.Second)
		assert.Equal(t, int64(120), spentHits(l.primaryCounters, "k", lim))
		assert.Equal(t, int64(20), l.Status().MaxExcessHits, "ten of the hits are within the limit")
		assert.Equal(t, int64(30), l.hitsReplayed.Load())
		downCount, _ := l.countChanges()
		assert.Zero(t, downCount)
	})
}

func TestFallbackStartsFromTheLastCount(t *testing.T) {
	for _, c := range []struct {
		lastCount int64 // the last count of the primary, with a limit of 100
		want      int64 // hits that the share of 50 still admits
	}{{0, 50}, {1, 50}, {2, 49}, {50, 25}, {99, 1}, {100, 0}, {5000, 0}} {
		t.Run(fmt.Sprint(c.lastCount), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				isKnown := true
				l := newFixture(t, func(o *Options) {
					o.LastCount = func(now time.Time, _ *backend.Hit) (int64, time.Time, bool) {
						defer func() { isKnown = false }()
						return c.lastCount, now.Add(-time.Minute), isKnown
					}
				})
				l.primary.SetError(errDown)
				lim := newLimit(t, 100, limit.Year, func(s *limit.Spec) { s.Algorithm = limit.SlidingLog })
				admittedHits := int64(0)
				for range 100 {
					if l.take("k", lim, 1).Allowed {
						admittedHits++
					}
				}
				assert.Equal(t, c.want, admittedHits)
			})
		})
	}
}

func TestSpendAtLeastNeverLowersTheCount(t *testing.T) {
	l := local.New(local.Options{})
	lim := newLimit(t, 100, limit.Year)
	for _, c := range []struct{ n, want int64 }{{0, 0}, {10, 10}, {5, 10}, {100, 100}, {100, 100}} {
		l.SpendAtLeast(time.Now(), []byte("k"), lim, c.n)
		assert.Equal(t, c.want, spentHits(l, "k", lim))
	}
}

func TestLateAnswerCorrectsTheChargesOfAGroup(t *testing.T) {
	for name, c := range map[string]struct {
		hitsOfB                    int64 // the share of b admits 5
		isChargedInPrimary         bool
		wantPrimary, wantSecondary [2]int64 // the spent hits of a and b in the primary, and in the secondary
		wantExcess                 int64
	}{
		"both admit":       {1, true, [2]int64{1, 1}, [2]int64{0, 0}, 0},
		"primary denies":   {1, false, [2]int64{0, 0}, [2]int64{1, 1}, 2},
		"secondary denies": {6, true, [2]int64{0, 0}, [2]int64{0, 0}, 0},
		"both deny":        {6, false, [2]int64{0, 0}, [2]int64{0, 0}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				secondary := local.New(local.Options{})
				l := newFixture(t, func(o *Options) { o.Secondary = secondary })
				primary := &latePrimary{next: backendtest.Func(func(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
					if c.isChargedInPrimary {
						l.primaryCounters.Take(ctx, now, hits, results)
					}
				})}
				l.options.Primary = primary
				a, b := newLimit(t, 100, limit.Year), newLimit(t, 10, limit.Year)
				hits := []backend.Hit{{Key: []byte("a"), Limit: a, N: 1, AllOrNone: true}, {Key: []byte("b"), Limit: b, N: c.hitsOfB, AllOrNone: true}}
				l.Take(t.Context(), time.Now(), hits, make([]backend.Result, 2))
				l.options.Primary = l.primaryCounters // for the replay
				primary.deliver()
				time.Sleep(time.Second)
				assert.Equal(t, c.wantPrimary, [2]int64{spentHits(l.primaryCounters, "a", a), spentHits(l.primaryCounters, "b", b)}, "in the primary")
				assert.Equal(t, c.wantSecondary, [2]int64{spentHits(secondary, Namespace+"a", l.shareOf(a)), spentHits(secondary, Namespace+"b", l.shareOf(b))}, "in the secondary")
				assert.Equal(t, c.wantExcess, l.Status().MaxExcessHits)
			})
		})
	}
}

func TestDeniedGroupIsNotReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, func(o *Options) { o.Secondary = local.New(local.Options{}) })
		a, b := newLimit(t, 100, limit.Year), newLimit(t, 2, limit.Year)
		l.openBreakers(a, "a")
		take := func(hits ...backend.Hit) { l.Take(t.Context(), time.Now(), hits, make([]backend.Result, len(hits))) }
		hitOnA := backend.Hit{Key: []byte("a"), Limit: a, N: 1, AllOrNone: true}
		take(hitOnA)
		l.heal()
		l.openBreakers(a, "a") // the share of a is spent by a hit that is replayed already
		take(hitOnA, backend.Hit{Key: []byte("b"), Limit: b, N: 2, AllOrNone: true})
		l.heal()
		assert.Equal(t, int64(1), spentHits(l.primaryCounters, "a", a))
		assert.Zero(t, spentHits(l.primaryCounters, "b", b))
	})
}

// A late answer changes only the charge of its own hit.
func TestLateAnswerLeavesOtherChargesAlone(t *testing.T) {
	for _, c := range []struct {
		name                       string
		change                     func(*limit.Spec)
		shadow                     bool
		admittedBefore, lateHits   int64 // the hits that the secondary has admitted before; the hits with the late answer; the limit is 100
		answerError                error
		pause                      time.Duration // the time until the answer comes
		wantPrimary, wantSecondary int64         // in the primary and in the secondary
	}{
		{"within the limit", nil, false, 40, 5, nil, time.Second, 5, 40},
		{"within the limit, after the window", nil, false, 40, 5, nil, time.Hour, 0, 3},
		{"secondary denies, within the limit", nil, false, 48, 5, nil, time.Second, 0, 48},
		{"secondary denies, in shadow mode", nil, true, 48, 5, nil, time.Second, 5, 48},
		{"secondary denies, never sent", nil, false, 48, 5, errNotSent, time.Second, 5, 48},
		{"mode allow", func(s *limit.Spec) { s.OnBackendFailure = limit.FailAllow }, false, 40, 5, nil, time.Second, 5, 40},
		{"mode allow, never sent", func(s *limit.Spec) { s.OnBackendFailure = limit.FailAllow }, false, 40, 5, errNotSent, time.Second, 5, 40},
		{"slots within the limit", useSlots, false, 40, 5, nil, time.Second, 5, 40},
		{"secondary denies slots", useSlots, false, 48, 5, nil, time.Second, 5, 48},
		{"slots never sent", useSlots, false, 40, 5, errNotSent, time.Second, 5, 45},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, primary := newFixture(t, nil), &latePrimary{}
				l.options.Primary = primary
				primary.next = backendtest.Func(func(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
					l.primary.Take(ctx, now, hits, results) // even if the answer differs
					results[0].Err = c.answerError
				})
				time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
				lim := newLimit(t, 100, limit.Hour)
				if c.change != nil {
					lim = newLimit(t, 100, limit.Hour, c.change)
				}
				share := l.shareOf(lim)
				assert.True(t, takeOne(l.secondary, Namespace+"k", share, c.admittedBefore).Allowed)
				l.Take(t.Context(), time.Now(), []backend.Hit{{Key: []byte("k"), Limit: lim, N: c.lateHits, Shadow: c.shadow}}, make([]backend.Result, 1))
				l.options.Primary = l.primary // for the replay
				time.Sleep(c.pause)
				if c.pause >= time.Hour {
					takeOne(l.secondary, Namespace+"k", share, 3) // in the next window
				}
				primary.deliver()
				time.Sleep(time.Second)
				assert.Equal(t, c.wantPrimary, spentHits(l.primaryCounters, "k", lim), "in the primary")
				assert.Equal(t, c.wantSecondary, spentHits(l.secondary, Namespace+"k", share), "in the secondary")
			})
		})
	}
}

func useSlots(s *limit.Spec) { s.Algorithm, s.Hold = limit.Concurrency, time.Hour.Microseconds() }

func TestFallbackStartsAtZeroWithoutALastCount(t *testing.T) {
	l := newFixture(t, func(o *Options) {
		o.LastCount = func(now time.Time, _ *backend.Hit) (int64, time.Time, bool) { return 50, now, false }
	})
	l.primary.SetError(errNotSent)
	assert.Equal(t, int64(49), l.take("k", newLimit(t, 100, limit.Year), 1).Remaining)
}

// The secondary and the primary charge an admitted hit of a denied call, but its price is 0.
func TestLateAnswerDoesNotChangeThePriceOfDeniedCall(t *testing.T) {
	for name, c := range map[string]struct {
		answerError                error
		wantPrimary, wantSecondary int64 // the spent hits
	}{
		"both admit":     {nil, 3, 0},
		"never sent":     {errNotSent, 3 + 3, 3},
		"answer is lost": {backend.ErrUnavailable, 3, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newFixture(t, nil)
				primary := &latePrimary{next: backendtest.Func(func(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
					l.primaryCounters.Take(ctx, now, hits, results)
					results[0].Err = c.answerError
				})}
				l.options.Primary = primary
				lim := newLimit(t, 100, limit.Year)
				l.Take(t.Context(), time.Now(), []backend.Hit{
					{Key: []byte("a"), Limit: lim, N: 3, DenialDeniesCall: true},
					{Key: []byte("b"), Limit: newLimit(t, 0, limit.Year), N: 1, DenialDeniesCall: true},
				}, make([]backend.Result, 2))
				l.options.Primary = l.primary // for the replay
				primary.deliver()
				time.Sleep(500 * time.Millisecond)
				assert.Equal(t, c.wantPrimary, spentHits(l.primaryCounters, "a", lim), "in the primary")
				assert.Equal(t, c.wantSecondary, spentHits(l.secondary, Namespace+"a", l.shareOf(lim)), "in the secondary")
				assert.Zero(t, l.Status().MaxExcessHits)
			})
		})
	}
}

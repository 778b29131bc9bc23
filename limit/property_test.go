package limit

import (
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

const epoch = 1_795_000_000 * second // a time in 2026

// drawLimit draws a limit of algorithm a. Most limits are small. Some limits are as large as possible.
func drawLimit(t *rapid.T, a Algorithm) *Limit {
	return rapid.Custom(func(t *rapid.T) *Limit {
		l, _ := New(drawSpec(t, a))
		return l
	}).Filter(func(l *Limit) bool { return l != nil }).Draw(t, "limit")
}

// drawSpec draws a Spec with valid fields. The fields together can be invalid.
func drawSpec(t *rapid.T, a Algorithm) Spec {
	s := Spec{
		Algorithm:    a,
		Requests:     rapid.OneOf(rapid.Uint32Range(0, 20), rapid.Uint32(), rapid.Just(uint32(math.MaxUint32))).Draw(t, "requests"),
		Unit:         rapid.SampledFrom([]Unit{Second, Minute, Hour, Day, Week, Month, Year}).Draw(t, "unit"),
		Multiplier:   rapid.Uint32Range(1, 10).Draw(t, "multiplier"),
		ChargeDenied: rapid.Bool().Draw(t, "charge_denied"),
	}
	if a.HasHolds() {
		s.Hold = rapid.Int64Range(MinHold, MaxHold).Draw(t, "hold")
	}
	if a.UsesBurst() {
		s.Burst = rapid.OneOf(rapid.Uint32Range(0, 30), rapid.Uint32()).Draw(t, "burst")
	}
	return s
}

// drawSmallLimit draws a limit so small that the model can replay its history hit by hit.
func drawSmallLimit(t *rapid.T, a Algorithm) *Limit {
	s := Spec{
		Algorithm: a,
		Requests:  rapid.Uint32Range(1, 12).Draw(t, "requests"),
		Unit:      rapid.SampledFrom([]Unit{Second, Minute, Year}).Draw(t, "unit"),
	}
	if a.UsesBurst() {
		s.Burst = rapid.Uint32Range(0, 8).Draw(t, "burst") // this burst refills within ten years, even at 1 hit per year
	}
	return mustNew(t, s)
}

func mustNew(t interface{ Fatalf(string, ...any) }, s Spec) *Limit {
	l, err := New(s)
	if err != nil {
		t.Fatalf("New(%+v): %v", s, err)
	}
	return l
}

// drawStep draws the time until the next Take. It is often 0, a fraction of a window, or a
// whole number of windows.
func drawStep(t *rapid.T, l *Limit) int64 {
	return rapid.OneOf(
		rapid.Just(int64(0)),
		rapid.Int64Range(0, 3),
		rapid.Int64Range(0, l.period/max(l.max, 1)+1),
		rapid.Int64Range(0, 2*l.period),
		rapid.SampledFrom([]int64{l.period - 1, l.period, l.period + 1, 2 * l.period}),
	).Draw(t, "step")
}

func drawHits(t *rapid.T, l *Limit) int64 {
	return rapid.OneOf(
		rapid.Just(int64(1)),
		rapid.Int64Range(-3, 5),
		rapid.SampledFrom([]int64{0, l.max, l.max + 1, l.capacity, -l.capacity, MaxHits, -MaxHits, math.MaxInt64, math.MinInt64}),
	).Draw(t, "n")
}

func checkEachAlgorithm(t *testing.T, property func(t *rapid.T, a Algorithm)) {
	for _, a := range Algorithms() {
		t.Run(a.String(), rapid.MakeCheck(func(t *rapid.T) { property(t, a) }))
	}
}

// clone returns a deep copy of s.
func clone(s State) State {
	if s.log == nil {
		return s
	}
	if set := s.log.holds; set != nil {
		s.log = &Log{holds: &holdSet{slices.Clone(set.holds), maps.Clone(set.expiries), set.redisMembers}}
		return s
	}
	s.log = &Log{entries: append([]hitEntry(nil), s.log.entries[s.log.head:]...)}
	return s
}

func TestDecisionsAndRemainingAgreeWithTheHistory(t *testing.T) {
	checkEachAlgorithm(t, func(t *rapid.T, a Algorithm) {
		l, now := drawSmallLimit(t, a), int64(epoch)
		var s State
		m := model{limit: l}
		for range 40 {
			now += drawStep(t, l)
			n := rapid.Int64Range(0, 4).Draw(t, "n")
			spent := ceil(m.spentHits(now))
			r := l.Take(&s, now, n)

			want := spent+n <= l.capacity
			if n == 0 && !a.ResetsAtWindowEnd() {
				want = spent+1 <= l.capacity
			}
			if a == SlidingWindow && want != r.Allowed {
				// A tick rounds the share up, so Take may deny one hit more.
				assert.False(t, r.Allowed, "admits more than the exact estimate")
				assert.LessOrEqual(t, m.tickError(now), int64(1))
			} else {
				assert.Equal(t, want, r.Allowed, "spent %d, n %d, %v", spent, n, l)
			}
			if n > 0 && r.Allowed {
				m.hits = append(m.hits, charge{now, n})
			}
			if remaining := l.capacity - ceil(m.spentHits(now)); a == SlidingWindow {
				assert.InDelta(t, remaining, r.Remaining, 1)
			} else {
				assert.Equal(t, remaining, r.Remaining)
			}
		}
	})
}

// tickError returns the number of hits by which ticks may round the estimate up.
func (m *model) tickError(now int64) int64 {
	previousHits := int64(0)
	for _, h := range m.hits {
		if h.time/m.limit.period == now/m.limit.period-1 {
			previousHits += h.n
		}
	}
	return previousHits/m.limit.ticks + 1
}

func TestAdmittedHitsStayWithinTheBoundOfAnyWindow(t *testing.T) {
	checkEachAlgorithm(t, func(t *rapid.T, a Algorithm) {
		l, now := drawSmallLimit(t, a), int64(epoch)
		l.ChargeDenied = rapid.Bool().Draw(t, "charge_denied")
		bound := map[Algorithm]int64{
			FixedWindow:    2 * l.max,
			FirstHitWindow: 2 * l.max,
			SlidingWindow:  2*l.max - 1,
			SlidingLog:     l.max,
			Concurrency:    l.max, // no hit releases a slot
			// The span is shorter than a period, so it refills less than Max.
			TokenBucket: l.capacity + l.max - 1,
		}[a]
		hasAlignedBound := map[Algorithm]bool{FixedWindow: true, SlidingWindow: true, SlidingLog: true}
		if a == SlidingWindow && l.max == 1 {
			bound = 1
		}
		var s State
		var admittedCharges []charge
		for range 60 {
			now += drawStep(t, l)
			n := rapid.Int64Range(0, 4).Draw(t, "n")
			if r := l.Take(&s, now, n); r.Allowed && n > 0 {
				admittedCharges = append(admittedCharges, charge{now, n})
			}
		}
		for i, firstCharge := range admittedCharges {
			var spanHits, alignedHits int64
			for _, h := range admittedCharges[i:] {
				if h.time < firstCharge.time+l.period {
					spanHits += h.n
				}
				if h.time/l.period == firstCharge.time/l.period {
					alignedHits += h.n
				}
			}
			assert.LessOrEqual(t, spanHits, bound, "in [t, t+period)")
			if hasAlignedBound[a] {
				assert.LessOrEqual(t, alignedHits, l.max, "in an aligned window")
			}
		}
	})
}

// drawHistory applies random Takes to s and returns a time after the last Take.
func drawHistory(t *rapid.T, l *Limit, s *State) (now int64) {
	now = epoch
	for range rapid.IntRange(0, 25).Draw(t, "takes") {
		now += drawStep(t, l)
		l.Take(s, now, drawHits(t, l))
	}
	return now + drawStep(t, l)
}

func TestPeekChangesNothing(t *testing.T) {
	checkEachAlgorithm(t, func(t *rapid.T, a Algorithm) {
		l := drawLimit(t, a)
		var s State
		now := drawHistory(t, l, &s)
		peekedState := clone(s)
		l.Take(&peekedState, now, 0)
		for range 5 {
			n := drawHits(t, l)
			assert.Equal(t, l.Take(&s, now, n), l.Take(&peekedState, now, n))
			now += drawStep(t, l)
		}
	})
}

func TestPeekIsAllowedIfOneMoreHitPasses(t *testing.T) {
	checkEachAlgorithm(t, func(t *rapid.T, a Algorithm) {
		l := drawLimit(t, a)
		var s State
		now := drawHistory(t, l, &s)
		peek := l.Take(&s, now, 0)
		if a.ResetsAtWindowEnd() {
			assert.Equal(t, peek.Remaining >= 0, peek.Allowed, "denied once the count exceeds the limit")
			return
		}
		assert.Equal(t, l.Take(&s, now, 1).Allowed, peek.Allowed)
	})
}

func TestRefundNeverExceedsTheCapacity(t *testing.T) {
	checkEachAlgorithm(t, func(t *rapid.T, a Algorithm) {
		l := drawLimit(t, a)
		var s State
		now := drawHistory(t, l, &s)
		remainingBefore := l.Take(&s, now, 0).Remaining
		n := rapid.OneOf(rapid.Int64Range(1, 5), rapid.Int64Range(1, MaxHits)).Draw(t, "refunded hits")
		r := l.Take(&s, now, -n)
		assert.True(t, r.Allowed)
		assert.LessOrEqual(t, r.Remaining, l.capacity)
		assert.GreaterOrEqual(t, r.Remaining, remainingBefore)
		assert.LessOrEqual(t, r.Remaining-remainingBefore, n)
		if a.ResetsAtWindowEnd() || a == SlidingLog || a.HasHolds() {
			assert.Equal(t, min(remainingBefore+n, l.capacity), r.Remaining)
		}
	})
}

func TestRefundOfMaxHitsLeavesNothingSpent(t *testing.T) {
	checkEachAlgorithm(t, func(t *rapid.T, a Algorithm) {
		l := drawLimit(t, a)
		var s State
		now := int64(epoch)
		for range 5 { // limits with the tag of l charge more than l allows
			otherSpec := l.Spec
			otherSpec.Requests, otherSpec.Burst, otherSpec.ChargeDenied = rapid.Uint32Min(1<<31).Draw(t, "requests"), 0, true
			now += drawStep(t, l)
			mustNew(t, otherSpec).Take(&s, now, rapid.SampledFrom([]int64{1, 1 << 32, MaxHits}).Draw(t, "n"))
		}
		assert.True(t, l.Take(&s, now+drawStep(t, l), -MaxHits).Allowed)
		assert.True(t, s.IsZero())
	})
}

func TestDebtIsAtMostOneWindow(t *testing.T) {
	checkEachAlgorithm(t, func(t *rapid.T, a Algorithm) {
		l := drawLimit(t, a)
		l.ChargeDenied = true
		var s State
		now := drawHistory(t, l, &s)
		for range 10 {
			l.Take(&s, now, drawHits(t, l))
		}
		if !a.ResetsAtWindowEnd() { // the debt of a window has no bound
			assert.GreaterOrEqual(t, l.Take(&s, now, 0).Remaining, -l.max)
		}
		assert.True(t, l.max == 0 || l.Take(&s, now+2*l.period+l.fillTime.us+1, 1).Allowed)
	})
}

func TestDeniedHitsCostNothingUnlessCharged(t *testing.T) {
	checkEachAlgorithm(t, func(t *rapid.T, a Algorithm) {
		l := drawLimit(t, a)
		var s State
		now := drawHistory(t, l, &s)
		remainingBefore := l.Take(&s, now, 0).Remaining
		n := rapid.Int64Range(1, MaxHits).Draw(t, "n")
		r := l.Take(&s, now, n)
		switch {
		case r.Allowed:
			assert.GreaterOrEqual(t, r.Remaining, int64(0))
			assert.LessOrEqual(t, r.Remaining, remainingBefore-n+1) // +1, because fractions are rounded
		case l.ChargeDenied:
			// A log in debt drops old entries when newer entries have Max hits.
			assert.LessOrEqual(t, r.Remaining, max(remainingBefore, 0))
		default:
			assert.Equal(t, remainingBefore, r.Remaining)
		}
	})
}

func TestTimeUntilAdmittedIsTheEarliestTimeAtWhichTheSameHitsPass(t *testing.T) {
	checkEachAlgorithm(t, func(t *rapid.T, a Algorithm) {
		l := drawLimit(t, a)
		var s State
		now := drawHistory(t, l, &s)
		n := min(max(drawHits(t, l), 0), MaxHits)
		r := l.Take(&s, now, n)
		wait := l.TimeUntilAdmitted(n, r)
		switch {
		case r.Allowed && wait == 0:
			assert.True(t, l.Take(&s, now, n).Allowed, "the same hits pass once more")
			return
		case wait == Never:
			assert.Greater(t, max(n, 1), l.capacity)
			return
		}
		assert.Positive(t, wait)
		earlyState, lateState := clone(s), clone(s)
		tolerance := int64(0)
		if r.Allowed && a == TokenBucket {
			tolerance = 1
		}
		assert.False(t, l.Take(&earlyState, now+wait-1-tolerance, n).Allowed, "before the time that the answer names")
		assert.True(t, l.Take(&lateState, now+wait, n).Allowed, "at the time that the answer names")
	})
}

func TestNothingIsSpentAfterResetAfter(t *testing.T) {
	checkEachAlgorithm(t, func(t *rapid.T, a Algorithm) {
		l := drawLimit(t, a)
		var s State
		now := drawHistory(t, l, &s)
		r := l.Take(&s, now, drawHits(t, l))
		if s.IsZero() {
			assert.Equal(t, l.capacity, r.Remaining)
			assert.True(t, r.ResetAfter == 0 || a.AlignsWindows())
			return
		}
		if a.HasHolds() {
			assert.LessOrEqual(t, now+r.ResetAfter, s.LastExpiry())
			r.ResetAfter = s.LastExpiry() - now
		}
		assert.Positive(t, r.ResetAfter)
		assert.False(t, func() bool { c := clone(s); l.Take(&c, now+r.ResetAfter-1, 0); return c.IsZero() }() && a != SlidingWindow)
		assert.Equal(t, l.capacity, l.Take(&s, now+r.ResetAfter, 0).Remaining)
	})
}

func TestStateStaysBoundedForAnyClock(t *testing.T) {
	checkEachAlgorithm(t, func(t *rapid.T, a Algorithm) {
		l, now := drawLimit(t, a), int64(epoch)
		var s State
		for range 40 {
			now = max(0, now+rapid.OneOf(rapid.Int64Range(-3*l.period, 3*l.period), rapid.Int64Range(-5, 5)).Draw(t, "clock"))
			r := l.Take(&s, now, drawHits(t, l))
			assert.LessOrEqual(t, r.Remaining, l.capacity)
			assert.GreaterOrEqual(t, r.ResetAfter, int64(0))
			assert.GreaterOrEqual(t, r.RetryAfter, int64(Never))
			if a.HasHolds() {
				continue // a hold lasts until its expiry, even if the clock goes back
			}
			assert.LessOrEqual(t, int64(s.EntryCount()), min(l.max, MaxLogEntries))
			// After the clock went back, the wait is at most the time of the state
			// and one window.
			assert.LessOrEqual(t, r.ResetAfter, 3*l.period+l.fillTime.us+1)
		}
	})
}

func TestChangedNumberKeepsSpentHitsOfAnyHistory(t *testing.T) {
	checkEachAlgorithm(t, func(t *rapid.T, a Algorithm) {
		oldLimit := drawSmallLimit(t, a)
		var s State
		now := int64(epoch)
		for range 15 {
			now += drawStep(t, oldLimit)
			oldLimit.Take(&s, now, rapid.Int64Range(0, 3).Draw(t, "n"))
		}
		spent := oldLimit.capacity - oldLimit.Take(&s, now, 0).Remaining
		newSpec := oldLimit.Spec
		newSpec.Requests = rapid.Uint32Range(1, 12).Draw(t, "new requests")
		l := mustNew(t, newSpec)
		remaining := l.Take(&s, now, 0).Remaining
		if a == TokenBucket {
			// The bucket keeps its spent time, not its spent tokens.
			assert.GreaterOrEqual(t, remaining, -l.max)
			assert.LessOrEqual(t, remaining, l.capacity)
			return
		}
		assert.Equal(t, l.capacity-spent, remaining)
	})
}

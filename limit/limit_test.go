package limit

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// step is one call of Take and its expected result.
type step struct {
	time      time.Duration // since the start of a window
	n         int64
	allowed   bool
	remaining int64
	reset     time.Duration
	retry     time.Duration // -1 for Never
}

const ms = time.Millisecond

func TestTakeDecidesAsItsAlgorithmDocuments(t *testing.T) {
	tenPerSecond := Spec{Requests: 10, Unit: Second}
	withChange := func(s Spec, change func(*Spec)) Spec { change(&s); return s }
	chargeDenied := func(s *Spec) { s.ChargeDenied = true }

	for name, c := range map[string]struct {
		spec  Spec
		steps []step
	}{
		"fixed window: denied hits are charged, as in envoyproxy/ratelimit": {withChange(tenPerSecond, chargeDenied), []step{
			{time: 0, n: 7, allowed: true, remaining: 3, reset: 1000 * ms},
			{time: 100 * ms, n: 3, allowed: true, remaining: 0, reset: 900 * ms},
			{time: 100 * ms, n: 0, allowed: true, remaining: 0, reset: 900 * ms}, // a peek passes at exactly the limit
			{time: 200 * ms, n: 3, remaining: -3, reset: 800 * ms, retry: 800 * ms},
			{time: 200 * ms, n: 0, remaining: -3, reset: 800 * ms, retry: 800 * ms},
			{time: 1000 * ms, n: 1, allowed: true, remaining: 9, reset: 1000 * ms},
		}},
		"fixed window: a charged call above the limit exhausts the limit": {withChange(tenPerSecond, chargeDenied), []step{
			{time: 0, n: 15, remaining: -5, reset: 1000 * ms, retry: -1},
			{time: 0, n: 1, remaining: -6, reset: 1000 * ms, retry: 1000 * ms},
		}},
		"fixed window: denied hits are not charged": {tenPerSecond, []step{
			{time: 0, n: 15, remaining: 10, reset: 1000 * ms, retry: -1},
			{time: 0, n: 8, allowed: true, remaining: 2, reset: 1000 * ms},
			{time: 0, n: 3, remaining: 2, reset: 1000 * ms, retry: 1000 * ms},
			{time: 0, n: 2, allowed: true, remaining: 0, reset: 1000 * ms},
			{time: 0, n: -100, allowed: true, remaining: 10, reset: 1000 * ms},
		}},
		"fixed window: a limit of 0 denies hits and allows peeks": {withChange(tenPerSecond, func(s *Spec) { s.Requests = 0 }), []step{
			{time: 0, n: 0, allowed: true, reset: 1000 * ms},
			{time: 0, n: 1, reset: 1000 * ms, retry: -1},
		}},
		"sliding window: hits of the previous window count less over time": {withChange(tenPerSecond, func(s *Spec) { s.Algorithm = SlidingWindow }), []step{
			{time: 0, n: 10, allowed: true, remaining: 0, reset: 2000 * ms},
			{time: 900 * ms, n: 1, remaining: 0, reset: 1100 * ms, retry: 200 * ms}, // until a tenth of the next window has passed
			{time: 1100 * ms, n: 1, allowed: true, remaining: 0, reset: 1900 * ms},
			{time: 1500 * ms, n: 5, remaining: 4, reset: 1500 * ms, retry: 100 * ms},
			{time: 1600 * ms, n: 5, allowed: true, remaining: 0, reset: 1400 * ms},
			{time: 1600 * ms, n: 11, remaining: 0, reset: 1400 * ms, retry: -1},
			{time: 4000 * ms, n: 0, allowed: true, remaining: 10},
		}},
		"sliding window: charged denied hits make a debt of at most a window": {withChange(withChange(tenPerSecond, func(s *Spec) { s.Algorithm = SlidingWindow }), chargeDenied), []step{
			{time: 0, n: 8, allowed: true, remaining: 2, reset: 2000 * ms},
			{time: 500 * ms, n: 3, remaining: -1, reset: 1500 * ms, retry: 863_638 * time.Microsecond},
			{time: 500 * ms, n: 1_000_000, remaining: -10, reset: 1500 * ms, retry: -1},
			{time: 1000 * ms, n: 4, remaining: -10, reset: 1000 * ms, retry: 700 * ms},
			{time: 1500 * ms, n: 100, remaining: -10, reset: 1500 * ms, retry: -1},
		}},
		"sliding log: each hit stops counting after one window": {withChange(tenPerSecond, func(s *Spec) { s.Algorithm = SlidingLog }), []step{
			{time: 0, n: 4, allowed: true, remaining: 6, reset: 1000 * ms},
			{time: 600 * ms, n: 6, allowed: true, remaining: 0, reset: 1000 * ms},
			{time: 700 * ms, n: 0, remaining: 0, reset: 900 * ms, retry: 300 * ms},
			{time: 700 * ms, n: 5, remaining: 0, reset: 900 * ms, retry: 900 * ms},
			{time: 1000*ms - 1000, n: 1, remaining: 0, reset: 600*ms + 1000, retry: 1000},
			{time: 1000 * ms, n: 4, allowed: true, remaining: 0, reset: 1000 * ms},
			{time: 1000 * ms, n: -5, allowed: true, remaining: 5, reset: 600 * ms}, // a refund removes the newest hits first
		}},
		"sliding log: charged denied hits keep the limit exceeded": {withChange(withChange(tenPerSecond, func(s *Spec) { s.Algorithm = SlidingLog }), chargeDenied), []step{
			{time: 0, n: 10, allowed: true, remaining: 0, reset: 1000 * ms},
			{time: 900 * ms, n: 10, remaining: 0, reset: 1000 * ms, retry: 1000 * ms},
			{time: 1100 * ms, n: 1, remaining: -1, reset: 1000 * ms, retry: 800 * ms},
			{time: 1900 * ms, n: 1, allowed: true, remaining: 8, reset: 1000 * ms},
		}},
		"token bucket: a burst passes, then hits at the rate": {withChange(tenPerSecond, func(s *Spec) { s.Algorithm, s.Burst = TokenBucket, 20 }), []step{
			{time: 0, n: 20, allowed: true, remaining: 0, reset: 2000 * ms},
			{time: 0, n: 1, remaining: 0, reset: 2000 * ms, retry: 100 * ms},
			{time: 0, n: 21, remaining: 0, reset: 2000 * ms, retry: -1},
			{time: 150 * ms, n: 1, allowed: true, remaining: 0, reset: 1950 * ms},
			{time: 150 * ms, n: 2, remaining: 0, reset: 1950 * ms, retry: 150 * ms},
			{time: 150 * ms, n: -3, allowed: true, remaining: 3, reset: 1650 * ms},
			{time: 1800 * ms, n: 0, allowed: true, remaining: 20},
		}},
		"token bucket: charged denied hits make a debt of at most a window": {withChange(withChange(tenPerSecond, func(s *Spec) { s.Algorithm = TokenBucket }), chargeDenied), []step{
			{time: 0, n: 1_000_000, remaining: -10, reset: 2000 * ms, retry: -1},
			{time: 500 * ms, n: 0, remaining: -5, reset: 1500 * ms, retry: 600 * ms},
			{time: 1100 * ms, n: 1, allowed: true, remaining: 0, reset: 1000 * ms},
		}},
		"token bucket: burst 1 spaces calls evenly": {Spec{Algorithm: TokenBucket, Requests: 3, Unit: Second, Burst: 1}, []step{
			{time: 0, n: 1, allowed: true, remaining: 0, reset: 333_334 * time.Microsecond},
			{time: 333_333 * time.Microsecond, n: 1, remaining: 0, reset: time.Microsecond, retry: time.Microsecond},
			{time: 333_334 * time.Microsecond, n: 1, allowed: true, remaining: 0, reset: 333_334 * time.Microsecond},
			{time: 666_667 * time.Microsecond, n: 1, remaining: 0, reset: time.Microsecond, retry: time.Microsecond},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l := mustNew(t, c.spec)
			var s State
			for i, step := range c.steps {
				want := Result{Allowed: step.allowed, Remaining: step.remaining, ResetAfter: step.reset.Microseconds(), RetryAfter: step.retry.Microseconds()}
				if step.retry < 0 {
					want.RetryAfter = Never
				}
				got := l.Take(&s, epoch+step.time.Microseconds(), step.n)
				if got.Allowed {
					got.RetryAfter = 0 // TestTimeUntilAdmittedIsTheEarliestTimeAtWhichTheSameHitsPass checks it
				}
				assert.Equal(t, want, got, "step %d", i)
			}
		})
	}
}

func TestNewRejectsBadSpecs(t *testing.T) {
	for name, c := range map[string]struct {
		spec Spec
		want string
	}{
		"no unit":                      {Spec{Requests: 1}, "unit 0 is not known"},
		"a number after the last unit": {Spec{Requests: 1, Unit: 9}, "unit 9 is not known"},
		"an unknown algorithm":         {Spec{Algorithm: 9, Unit: Second}, "algorithm 9 is not known"},
		"a window that overflows":      {Spec{Requests: 1, Unit: Year, Multiplier: math.MaxUint32}, "unit_multiplier 4294967295 makes the window longer than ten years; with unit year it can be at most 10"},
		"a window too long":            {Spec{Requests: 1, Unit: Year, Multiplier: 11}, "unit_multiplier 11 makes the window longer than ten years; with unit year it can be at most 10"},
		"a burst without bucket":       {Spec{Requests: 1, Unit: Second, Burst: 2}, "burst is only for algorithm token_bucket, not fixed_window"},
		"a burst over 10 years":        {Spec{Algorithm: TokenBucket, Requests: 2, Unit: Year, Burst: 100}, "burst 100 would take more than ten years to refill; at 2 per year it can be at most 20"},
		"a ratio over 1":               {Spec{Requests: 1, Unit: Second, FallbackRatio: 1.5}, "fallback_ratio 1.5 must be above 0 and at most 1"},
		"a ratio below 0":              {Spec{Requests: 1, Unit: Second, FallbackRatio: -1}, "fallback_ratio -1 must be above 0 and at most 1"},
		"several errors at once": {
			Spec{Requests: 1, Unit: Year, Multiplier: 11, Burst: 2, FallbackRatio: 1.5},
			"unit_multiplier 11 makes the window longer than ten years; with unit year it can be at most 10\n" +
				"burst is only for algorithm token_bucket, not fixed_window\n" +
				"fallback_ratio 1.5 must be above 0 and at most 1",
		},
		"a ratio of NaN": {Spec{Requests: 1, Unit: Second, FallbackRatio: math.NaN()}, "fallback_ratio NaN must be above 0 and at most 1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(c.spec)
			require.EqualError(t, err, c.want)
		})
	}
}

func TestTokenBucketOfTheHighestRateIsALimit(t *testing.T) {
	for _, burst := range []uint32{0, 1, math.MaxUint32} {
		l, err := New(Spec{Algorithm: TokenBucket, Requests: math.MaxUint32, Unit: Millisecond, Multiplier: 10, Burst: burst})
		require.NoError(t, err)
		r := l.Take(new(State), 0, 1)
		assert.True(t, r.Allowed)
		assert.Equal(t, l.Capacity()-1, r.Remaining)
	}
}

func TestTagNamesAlgorithmWindowAndScope(t *testing.T) {
	for tag, spec := range map[string]Spec{
		"fw1":      {Requests: 5, Unit: Second},
		"fw60":     {Requests: 5, Unit: Minute},
		"fw900":    {Requests: 5, Unit: Minute, Multiplier: 15},
		"sw3600":   {Requests: 5, Unit: Hour, Algorithm: SlidingWindow},
		"sl86400":  {Requests: 5, Unit: Day, Algorithm: SlidingLog},
		"tb1":      {Requests: 5, Unit: Second, Algorithm: TokenBucket, Burst: 7},
		"fw60i":    {Requests: 5, Unit: Minute, Scope: Instance},
		"fw604800": {Requests: 5, Unit: Week},
	} {
		assert.Equal(t, tag, mustNew(t, spec).Tag())
	}
	assert.Equal(t, mustNew(t, Spec{Requests: 1, Unit: Minute}).Tag(), mustNew(t, Spec{Requests: 2, Unit: Second, Multiplier: 60}).Tag())
}

func TestDurationUntilResetIsTheWaitForTheResponse(t *testing.T) {
	windowLimit := mustNew(t, Spec{Requests: 1, Unit: Minute})
	bucket := mustNew(t, Spec{Requests: 1, Unit: Minute, Algorithm: TokenBucket})
	for name, c := range map[string]struct {
		limit  *Limit
		result Result
		want   int64
	}{
		"allowed: the time until nothing is spent":               {bucket, Result{Allowed: true, ResetAfter: 7}, 7},
		"denied: the time until the same hits can pass":          {bucket, Result{ResetAfter: 7, RetryAfter: 5}, 5},
		"never, windows aligned: the time until the window ends": {windowLimit, Result{ResetAfter: 7, RetryAfter: Never}, 7},
		"never, windows not aligned: the length of a window":     {bucket, Result{ResetAfter: 0, RetryAfter: Never}, 60 * second},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, c.want, c.limit.DurationUntilReset(c.result)) })
	}
}

func TestParsingANameReturnsItsValue(t *testing.T) {
	for _, a := range Algorithms() {
		got, ok := ParseAlgorithm(a.String())
		assert.True(t, ok)
		assert.Equal(t, a, got)
	}
	for _, name := range UnitNames() {
		got, ok := ParseUnit(name)
		assert.True(t, ok)
		assert.Equal(t, name, got.String())
	}
	for _, m := range []FailureMode{FailLocal, FailAllow, FailDeny} {
		got, ok := ParseFailureMode(m.String())
		assert.True(t, ok)
		assert.Equal(t, m, got)
	}
	_, ok := ParseUnit("MiNute")
	assert.True(t, ok, "upper and lower case are equal in units")
	for _, unknownName := range []string{"", "minutes", " minute", "unknown"} {
		_, ok = ParseUnit(unknownName)
		assert.False(t, ok, unknownName)
	}
	_, ok = ParseScope("replica")
	assert.False(t, ok)
	_, ok = ParseFailureMode("")
	assert.False(t, ok)
}

func TestStringShowsAlgorithmBurstAndScope(t *testing.T) {
	assert.Equal(t, "10 per minute", mustNew(t, Spec{Requests: 10, Unit: Minute}).String())
	assert.Equal(t, "10 per 15 minutes, token_bucket, burst 20, per instance",
		mustNew(t, Spec{Requests: 10, Unit: Minute, Multiplier: 15, Algorithm: TokenBucket, Burst: 20, Scope: Instance}).String())
}

func TestTakeDoesNotAllocate(t *testing.T) {
	for _, a := range Algorithms() {
		l := mustNew(t, Spec{Algorithm: a, Requests: 50, Unit: Second})
		var s State
		now := int64(epoch)
		l.Take(&s, now, 1)
		for range 10_000 { // fills the log
			now += 30_000
			l.Take(&s, now, 1)
		}
		assert.Zero(t, testing.AllocsPerRun(1000, func() { now += 30_000; l.Take(&s, now, 1) }), a)
		var emptyState State
		assert.Zero(t, testing.AllocsPerRun(1000, func() { l.Take(&emptyState, now, 0); l.Take(&emptyState, now, MaxHits) }), "%s, denied", a)
	}
}

func TestLogFreesMemoryAfterManyHits(t *testing.T) {
	l := mustNew(t, Spec{Algorithm: SlidingLog, Requests: 10_000, Unit: Second})
	var s State
	now := int64(epoch)
	for range 10_000 {
		now++
		l.Take(&s, now, 1)
	}
	for range 4 {
		now += second / 2
		l.Take(&s, now, 1)
	}
	assert.Equal(t, 2, s.EntryCount())
	assert.LessOrEqual(t, cap(s.log.entries), 64)
}

func BenchmarkTake(b *testing.B) {
	for _, a := range Algorithms() {
		b.Run(a.String(), func(b *testing.B) {
			l, err := New(Spec{Algorithm: a, Requests: 100, Unit: Second})
			require.NoError(b, err)
			var s State
			now := int64(epoch)
			b.ReportAllocs()
			for b.Loop() {
				now += 9_000
				l.Take(&s, now, 1)
			}
		})
	}
}

// The fallback and the permits of a lease can admit more hits than the capacity.
func TestHitsBeyondTheCapacityNeverPassASecondTime(t *testing.T) {
	for _, a := range Algorithms() {
		for _, requests := range []uint32{0, 10} {
			l, err := New(Spec{Algorithm: a, Requests: requests, Unit: Hour})
			require.NoError(t, err)
			assert.Equal(t, int64(Never), l.TimeUntilAdmitted(l.Capacity()+1, Result{Allowed: true}), l)
		}
	}
}

func TestNameOfAWindowIsItsStartInSecondsOrMilliseconds(t *testing.T) {
	const start = 1_900_000_034_500_000
	for period, want := range map[int64]string{60 * second: "@1900000034", second: "@1900000034", second / 4: "@1900000034500", second * 3 / 2: "@1900000034500"} {
		assert.Equal(t, want, string((&Limit{period: period}).AppendWindow(nil, start)), period)
	}
}

package limit

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPastIsRememberedAsLongAsCountersMatter(t *testing.T) {
	mk := func(s Spec) *Limit {
		l, err := New(s)
		require.NoError(t, err)
		return l
	}
	hour := mk(Spec{Unit: Hour, Requests: 10})
	log := mk(Spec{Unit: Hour, Requests: 5, Algorithm: SlidingLog})
	bucket := mk(Spec{Unit: Minute, Requests: 5, Burst: 10, Algorithm: TokenBucket})
	window := mk(Spec{Unit: Second, Requests: 5, Algorithm: SlidingWindow})
	instance := mk(Spec{Unit: Hour, Requests: 10, Algorithm: SlidingLog, Scope: Instance})
	tags := func(l *Limit, now int64) []string {
		var all []string
		for _, p := range l.Past(now, nil) {
			all = append(all, p.Tag())
		}
		return all
	}
	const h = 3600 * second

	l := log.After(hour, 0)
	assert.Equal(t, []string{"fw3600"}, tags(l, h-1))
	assert.Empty(t, tags(l, h), "both remember an hour")
	assert.Equal(t, []string{"fw3600"}, tags(bucket.After(hour, 0), 120*second-1), "the bucket takes two minutes to fill")
	assert.Empty(t, tags(bucket.After(hour, 0), 120*second))
	assert.Empty(t, tags(window.After(hour, 0), 2*second))
	slidingHour := mk(Spec{Unit: Hour, Requests: 5, Algorithm: SlidingWindow})
	assert.Equal(t, []string{"sw3600"}, tags(hour.After(slidingHour, 0), 2*h-1), "it has yet to forget what was spent in two windows")
	assert.Empty(t, tags(hour.After(slidingHour, 0), 2*h))

	l = hour.After(log.After(hour, 0), 1)
	assert.Equal(t, []string{"sl3600"}, tags(l, 2), "its own counter is no past")
	l = bucket.After(l, 3)
	assert.Equal(t, []string{"fw3600", "sl3600"}, tags(l, 4), "all before it, the last one first")

	both := bucket.After(hour, 5).After(log, 5)
	assert.Equal(t, []string{"sl3600", "fw3600"}, tags(both, 6), "what it has learned before it keeps")

	larger := mk(Spec{Unit: Hour, Requests: 20})
	assert.False(t, hour.After(larger, 0).HasPast(), "its own counter says all")
	slow := mk(Spec{Unit: Hour, Requests: 1, Algorithm: TokenBucket})
	fast := mk(Spec{Unit: Hour, Requests: 2, Algorithm: TokenBucket})
	assert.Equal(t, int64(2), log.After(slow.After(fast, 0), 0).Past(1, nil)[0].Max(), "of one bucket the fastest")
	slowBurst := mk(Spec{Unit: Hour, Requests: 1, Burst: 6, Algorithm: TokenBucket})
	was := log.After(slowBurst.After(fast, 0), 0).Past(1, nil)[0]
	assert.Equal(t, []int64{2, 6}, []int64{was.Max(), was.Capacity()}, "of one bucket the fastest and the deepest")
	was = log.After(slow.After(slowBurst, 0), 0).Past(1, nil)[0]
	assert.Equal(t, []int64{1, 6}, []int64{was.Max(), was.Capacity()}, "of one bucket the deepest")
	assert.Empty(t, tags(instance.After(hour, 0), 1), "another scope counts elsewhere")

	for i := range int64(100) {
		l = mk(Spec{Unit: Hour, Multiplier: uint32(i + 1)}).After(l, i)
	}
	assert.LessOrEqual(t, len(l.Past(100, nil)), maxPast, "never without end")
}

func TestWhatIsGivenBackToAPastCounter(t *testing.T) {
	for _, c := range []struct{ n, spent, past, want int64 }{
		{-2, 10, 7, 0}, // all charged since
		{-5, 10, 7, 2},
		{-5, 7, 7, 5},
		{-1, 2, 7, 1}, // a smaller limit's counter can't show more
		{-MaxHits, 10, 7, MaxHits - 3},
		{math.MinInt64, 0, 0, MaxHits},
	} {
		assert.Equal(t, c.want, GivenBack(c.n, c.spent, c.past), "%+v", c)
	}
}

func TestALoweredLogRemembersWhatTheLargerLimitAdmitted(t *testing.T) {
	hour := func(requests uint32) *Limit {
		return must(t, Spec{Unit: Hour, Requests: requests, Algorithm: SlidingLog, ChargeDenied: true})
	}
	const now, h = epoch, 3600 * second
	small := hour(2).After(hour(10), now)
	assert.EqualValues(t, 10, small.Remembers(now+h-1))
	assert.EqualValues(t, 2, small.Remembers(now+h), "what the larger admitted is over")
	assert.EqualValues(t, 10, hour(3).After(small, now+1).Remembers(now+h-1))
	assert.EqualValues(t, 20, hour(20).After(small, now+1).Remembers(now+2))
	other := must(t, Spec{Unit: Hour, Requests: 5})
	assert.EqualValues(t, 10, hour(2).After(other.After(hour(10), now), now+1).Remembers(now+2), "through another algorithm, too")
	assert.EqualValues(t, 5, other.After(hour(10), now).Remembers(now))
	assert.EqualValues(t, 5, small.Scaled(0.5).Remembers(now))
	assert.Empty(t, small.Past(now, nil), "its own counter is no past")

	var s State
	hour(10).Take(&s, now, 10)
	for i := range int64(50) {
		require.False(t, small.Take(&s, now+1+i, 1).Allowed)
	}
	assert.LessOrEqual(t, s.Entries(), 10)
	again := hour(10).After(small, now+60)
	assert.False(t, again.Take(&s, now+60, 1).Allowed)
	assert.True(t, again.Take(&s, now+50+h, 1).Allowed, "a window after the denied hits")
}

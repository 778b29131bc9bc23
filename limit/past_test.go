package limit

import (
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

	l = hour.After(log.After(hour, 0), 1)
	assert.Equal(t, []string{"sl3600"}, tags(l, 2), "its own counter is no past")
	l = bucket.After(l, 3)
	assert.Equal(t, []string{"fw3600", "sl3600"}, tags(l, 4), "all before it, the last one first")

	larger := mk(Spec{Unit: Hour, Requests: 20})
	assert.False(t, hour.After(larger, 0).HasPast(), "its own counter says all")
	slow := mk(Spec{Unit: Hour, Requests: 1, Algorithm: TokenBucket})
	fast := mk(Spec{Unit: Hour, Requests: 2, Algorithm: TokenBucket})
	assert.Equal(t, int64(2), log.After(slow.After(fast, 0), 0).Past(1, nil)[0].Max(), "of one bucket the fastest")
	assert.Empty(t, tags(instance.After(hour, 0), 1), "another scope counts elsewhere")

	for i := range int64(100) {
		l = mk(Spec{Unit: Hour, Multiplier: uint32(i + 1)}).After(l, i)
	}
	assert.LessOrEqual(t, len(l.Past(100, nil)), maxPast, "never without end")
}

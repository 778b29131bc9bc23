package denycache

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

func TestPeekHasTheDenialOfTheCache(t *testing.T) {
	observer := &deniedCount{}
	l := New(backend.Counters{Limiter: newCountingLimiter()}, Options{SizeBytes: 1 << 20, Observer: observer})
	lim := newLimit(t, limit.Spec{Requests: 1, Unit: limit.Minute})
	peek := func(elapsed time.Duration, n int64) *backend.RememberedDenial {
		peeks := make([]backend.Peek, 1)
		l.Peek(t.Context(), start.Add(elapsed), []backend.Hit{hit("k", lim, n)}, peeks)
		return peeks[0].Denial
	}
	take(l, 0, hit("k", lim, 1))
	assert.Nil(t, peek(0, 1), "nothing is denied yet")
	take(l, time.Second, hit("k", lim, 1))

	denial := peek(1500*time.Millisecond, 1)
	require.NotNil(t, denial)
	assert.Equal(t, start.Add(time.Second), denial.Since.UTC())
	assert.Equal(t, start.Add(2*time.Second), denial.Until.UTC(), "the next Limiter is asked again")
	assert.Zero(t, observer.hits, "a peek is no decision")
	assert.Equal(t, take(l, 1500*time.Millisecond, hit("k", lim, 1))[0], denial.Result)
	assert.Equal(t, 1, observer.hits)

	assert.Nil(t, peek(time.Minute, 1), "the denial has ended")
	assert.Nil(t, peek(1500*time.Millisecond, -1), "a refund passes")
}

// deniedCount counts the hits that the cache denies.
type deniedCount struct{ hits int }

func (c *deniedCount) Denied(*backend.Hit) { c.hits++ }

func TestPeekHasOnlyTheDenialOfItsCounter(t *testing.T) {
	l := New(backend.Counters{Limiter: newCountingLimiter()}, Options{SizeBytes: 1}) // the table has 64 entries, so other counters fill each set
	lim := newLimit(t, limit.Spec{Algorithm: limit.SlidingLog, Requests: 1})
	for i := range 300 {
		take(l, 0, hit(fmt.Sprint(i), lim, 1), hit(fmt.Sprint(i), lim, 1))
	}
	for i := range 400 {
		for _, n := range []int64{0, 1} {
			h := hit(fmt.Sprint(i), lim, n)
			peeks := make([]backend.Peek, 1)
			l.Peek(t.Context(), start, []backend.Hit{h}, peeks)
			assert.Equal(t, take(l, 0, h)[0].Source == backend.SourceDenyCache, peeks[0].Denial != nil, "%d hits of counter %d", n, i)
		}
	}
}

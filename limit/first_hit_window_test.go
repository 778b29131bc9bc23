package limit

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func TestFirstHitWindowStartsWithTheFirstHit(t *testing.T) {
	l := mustNew(t, Spec{Algorithm: FirstHitWindow, Requests: 2, Unit: Hour})
	const minute, start = 60 * second, epoch + 59*60*second // a minute before a clock hour ends
	var s State
	for _, c := range []struct {
		time, n int64
		want    Result
	}{
		{0, 0, Result{Allowed: true, Remaining: 2}},
		{0, 3, Result{Remaining: 2, RetryAfter: Never}},
		{0, 1, Result{Allowed: true, Remaining: 1, ResetAfter: 60 * minute}},
		{2 * minute, 1, Result{Allowed: true, Remaining: 0, ResetAfter: 58 * minute}},
		{2 * minute, 0, Result{Allowed: true, Remaining: 0, ResetAfter: 58 * minute}},
		{59 * minute, 1, Result{Remaining: 0, ResetAfter: minute, RetryAfter: minute}},
		{60 * minute, 0, Result{Allowed: true, Remaining: 2}},
		{100 * minute, 2, Result{Allowed: true, Remaining: 0, ResetAfter: 60 * minute}},
		{130 * minute, -2, Result{Allowed: true, Remaining: 2}},
		{130 * minute, 1, Result{Allowed: true, Remaining: 1, ResetAfter: 60 * minute}},
	} {
		assert.Equal(t, c.want, l.Take(&s, start+c.time, c.n), "at %d minutes, %d hits", c.time/minute, c.n)
	}
}

// The test finds the windows in the history of hits: a window starts with the first hit after the previous window.
func TestFirstHitWindowAdmitsAtMostMaxInEachWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, now := drawSmallLimit(t, FirstHitWindow), int64(epoch)
		var s State
		var start, admittedHits int64
		for range 60 {
			now += drawStep(t, l)
			n := rapid.Int64Range(1, 4).Draw(t, "n")
			r := l.Take(&s, now, n)
			if !r.Allowed {
				continue
			}
			if admittedHits == 0 || now >= start+l.period {
				start, admittedHits = now, 0
			}
			admittedHits += n
			assert.LessOrEqual(t, admittedHits, l.max)
			assert.Equal(t, start+l.period-now, r.ResetAfter)
		}
	})
}

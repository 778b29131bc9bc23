package guard_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

func TestPeekDenialIsTheAnswerOfTheGuard(t *testing.T) {
	lim, uncovered := newLimit(t, limit.FixedWindow, 10), newLimit(t, limit.SlidingLog, 10)
	r := newFixture(1)
	peek := func(l *limit.Limit) (backend.Result, time.Time, bool) {
		h := hit(l, 1)
		return r.PeekDenial(noon, &h)
	}
	_, _, ok := peek(lim)
	assert.False(t, ok, "nothing is charged yet")
	take(r, 0, hit(lim, 20), hit(uncovered, 20))
	calls := r.next.Calls()
	got, since, ok := peek(lim)
	assert.True(t, ok)
	assert.True(t, noon.Equal(since), since)
	assert.Equal(t, take(r, 0, hit(lim, 1))[0], got)
	assert.Equal(t, calls, r.next.Calls())
	_, _, ok = peek(uncovered)
	assert.False(t, ok)
}

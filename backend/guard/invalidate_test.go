package guard_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

func TestInvalidatedHitsGoToTheBackend(t *testing.T) {
	lim, uncovered := newLimit(t, limit.FixedWindow, 10), newLimit(t, limit.SlidingLog, 10)
	for name, c := range map[string]struct {
		invalidate func(fixture)
		calls      int // of the backend
	}{
		"the counter":          {func(r fixture) { r.Invalidate(&backend.Hit{Key: []byte("k"), Limit: lim}) }, 1},
		"another counter":      {func(r fixture) { r.Invalidate(&backend.Hit{Key: []byte("other"), Limit: lim}) }, 0},
		"an uncovered counter": {func(r fixture) { r.Invalidate(&backend.Hit{Key: []byte("k"), Limit: uncovered}) }, 0},
		"all":                  {func(r fixture) { r.InvalidateAll() }, 1},
		"all, twice":           {func(r fixture) { r.InvalidateAll(); take(r, 0, hit(lim, 100)); r.InvalidateAll() }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFixture(1)
			take(r, 0, hit(lim, 20))
			callsBefore := r.next.Calls()
			assert.False(t, take(r, 0, hit(lim, 1))[0].Allowed)
			assert.Equal(t, callsBefore, r.next.Calls())
			c.invalidate(r)
			take(r.shared, 0, hit(lim, -limit.MaxHits))
			got := take(r, 0, hit(lim, 1))[0]
			assert.Equal(t, c.calls, r.next.Calls()-callsBefore)
			assert.Equal(t, c.calls > 0, got.Allowed)
		})
	}
}

package guard_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

func TestWhatIsForgottenIsAskedForAgain(t *testing.T) {
	lim, other := charging(t, limit.FixedWindow, 10, 0), charging(t, limit.SlidingLog, 10, 0)
	for name, c := range map[string]struct {
		forget func(rig)
		asked  int // times, after that
	}{
		"one counter":         {func(r rig) { r.Forget(&backend.Hit{Key: []byte("k"), Limit: lim}) }, 1},
		"another counter":     {func(r rig) { r.Forget(&backend.Hit{Key: []byte("other"), Limit: lim}) }, 0},
		"one that it ignores": {func(r rig) { r.Forget(&backend.Hit{Key: []byte("k"), Limit: other}) }, 0},
		"all":                 {func(r rig) { r.ForgetAll() }, 1},
		"all, twice":          {func(r rig) { r.ForgetAll(); take(r, 0, hit(lim, 100)); r.ForgetAll() }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(1)
			take(r, 0, hit(lim, 20))
			before := r.next.Calls()
			assert.False(t, take(r, 0, hit(lim, 1))[0].Allowed)
			assert.Equal(t, before, r.next.Calls())
			c.forget(r)
			take(r.shared, 0, hit(lim, -limit.MaxHits))
			got := take(r, 0, hit(lim, 1))[0]
			assert.Equal(t, c.asked, r.next.Calls()-before)
			assert.Equal(t, c.asked > 0, got.Allowed)
		})
	}
}

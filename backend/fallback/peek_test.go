package fallback

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

func TestPeekerAnswersAsLimiter(t *testing.T) {
	for _, mode := range []limit.FailureMode{limit.FailDefault, limit.FailLocal, limit.FailAllow, limit.FailDeny} {
		for name, fail := range map[string]func(*fixture, *limit.Limit){
			"primary works":   func(*fixture, *limit.Limit) {},
			"primary fails":   func(r *fixture, _ *limit.Limit) { r.primary.SetError(errDown) },
			"primary is late": func(r *fixture, _ *limit.Limit) { r.primary.SetError(fmt.Errorf("%w: %w", backend.ErrLate, errDown)) },
			"other error":     func(r *fixture, _ *limit.Limit) { r.primary.SetError(assert.AnError) },
			"breaker is open": func(r *fixture, lim *limit.Limit) { r.openBreakers(lim, "k") },
			"primary is overloaded": func(r *fixture, _ *limit.Limit) {
				r.primary.SetError(fmt.Errorf("%w: %w", backend.ErrOverloaded, errDown))
			},
		} {
			t.Run(mode.String()+" "+name, func(t *testing.T) {
				r := newFixture(t, func(o *Options) { o.Mode = mode })
				lim := newLimit(t, 10, limit.Day)
				r.take("k", lim, 3)
				fail(r, lim)
				got, want := takeOne(r.Peeker(), "k", lim, 0), r.take("k", lim, 0)
				got.ResetAfter, want.ResetAfter = 0, 0 // the time goes on
				assert.Equal(t, want, got)
			})
		}
	}
}

func TestPeeksCountNothingAndTripNoBreaker(t *testing.T) {
	r := newFixture(t, nil)
	lim := newLimit(t, 10, limit.Day)
	r.primary.SetError(errDown)
	for range 2 * minFailures {
		takeOne(r.Peeker(), "k", lim, 0)
	}
	hit := &backend.Hit{Key: []byte("k"), Limit: lim}
	assert.Zero(t, r.hitsServed.Load())
	assert.Equal(t, Closed, r.Status().Breakers[0].State)
	assert.Zero(t, r.FailingSince(hit))
	r.take("k", lim, 0)
	assert.Equal(t, Failing, r.Status().Breakers[0].State)
	assert.NotZero(t, r.FailingSince(hit))
	r.primary.SetError(nil)
	takeOne(r.Peeker(), "k", lim, 0)
	assert.Equal(t, Failing, r.Status().Breakers[0].State, "only a hit ends the failures")
}

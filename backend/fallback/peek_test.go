package fallback

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

func TestPeekIsTheAnswerOfTake(t *testing.T) {
	for _, mode := range []limit.FailureMode{limit.FailDefault, limit.FailLocal, limit.FailAllow, limit.FailDeny} {
		for name, fail := range map[string]func(*fixture, *limit.Limit){
			"primary works": func(*fixture, *limit.Limit) {},
			"primary fails": func(r *fixture, _ *limit.Limit) { r.primary.SetError(errDown) },
			"primary is late": func(r *fixture, _ *limit.Limit) {
				r.primary.SetError(&backend.Error{Reason: backend.ReasonLate, Cause: errDown})
			},
			"other error":     func(r *fixture, _ *limit.Limit) { r.primary.SetError(assert.AnError) },
			"breaker is open": func(r *fixture, lim *limit.Limit) { r.openBreakers(lim, "k") },
			"primary is overloaded": func(r *fixture, _ *limit.Limit) {
				r.primary.SetError(&backend.Error{Reason: backend.ReasonOverload, Cause: errDown})
			},
		} {
			t.Run(mode.String()+" "+name, func(t *testing.T) {
				r := newFixture(t, func(o *Options) { o.Mode = mode })
				lim := newLimit(t, 10, limit.Day)
				r.take("k", lim, 3)
				fail(r, lim)
				got, want := r.peek("k", lim), r.take("k", lim, 0)
				got.ResetAfter, want.ResetAfter = 0, 0 // the time goes on
				assert.Equal(t, want, got)
			})
		}
	}
}

func TestPeeksCountNothingAndOpenNoBreaker(t *testing.T) {
	r := newFixture(t, nil)
	lim := newLimit(t, 10, limit.Day)
	r.primary.SetError(errDown)
	for range 2 * minFailures {
		r.peek("k", lim)
	}
	hit := &backend.Hit{Key: []byte("k"), Limit: lim}
	assert.Zero(t, r.hitsServed.Load())
	assert.Equal(t, Closed, r.Status().Breakers[0].State)
	assert.Zero(t, r.FailingSince(hit))
	r.take("k", lim, 0)
	assert.Equal(t, Failing, r.Status().Breakers[0].State)
	assert.NotZero(t, r.FailingSince(hit))
	r.primary.SetError(nil)
	r.peek("k", lim)
	assert.Equal(t, Failing, r.Status().Breakers[0].State, "only a hit ends the failures")
}

// peek returns the answer of r to a hit with an N of 0.
func (r *fixture) peek(key string, lim *limit.Limit) backend.Result {
	peeks := make([]backend.Peek, 1)
	r.Peek(context.Background(), time.Now(), []backend.Hit{{Key: []byte(key), Limit: lim, N: 1}}, peeks)
	return peeks[0].Result
}

func TestDecisionHasTheShareThatTheFallbackApplied(t *testing.T) {
	for mode, want := range map[limit.FailureMode]int64{limit.FailLocal: 5, limit.FailAllow: 0, limit.FailDeny: 0} {
		r := newFixture(t, func(o *Options) { o.Mode, o.Ratio = mode, 0.5 })
		lim := newLimit(t, 10, limit.Day)
		assert.Nil(t, r.take("k", lim, 1).Share, "the primary has decided")
		r.primary.SetError(errDown)
		share := r.take("k", lim, 1).Share
		if want == 0 {
			assert.Nil(t, share, mode)
			continue
		}
		assert.Equal(t, want, share.Max())
	}
}

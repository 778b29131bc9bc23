package fallback

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

func TestPeekHasTheAnswerThatTakeWouldGive(t *testing.T) {
	for _, mode := range []limit.FailureMode{limit.FailDefault, limit.FailLocal, limit.FailAllow, limit.FailDeny} {
		for name, prepare := range map[string]func(*fixture, *limit.Limit){
			"primary works": func(*fixture, *limit.Limit) {},
			"primary fails": func(l *fixture, _ *limit.Limit) { l.primary.SetError(errDown) },
			"primary is late": func(l *fixture, _ *limit.Limit) {
				l.primary.SetError(&backend.Error{Reason: backend.ReasonLate, Cause: errDown})
			},
			"primary returns another error": func(l *fixture, _ *limit.Limit) { l.primary.SetError(assert.AnError) },
			"breaker is open":               func(l *fixture, lim *limit.Limit) { l.openBreakers(lim, "k") },
			"primary is overloaded": func(l *fixture, _ *limit.Limit) {
				l.primary.SetError(&backend.Error{Reason: backend.ReasonOverload, Cause: errDown})
			},
		} {
			t.Run(mode.String()+" "+name, func(t *testing.T) {
				l := newFixture(t, func(o *Options) { o.Mode = mode })
				lim := newLimit(t, 10, limit.Day)
				l.take("k", lim, 3)
				prepare(l, lim)
				got, want := l.peek("k", lim), l.take("k", lim, 0)
				got.ResetAfter, want.ResetAfter = 0, 0 // time passes between both calls
				assert.Equal(t, want, got)
			})
		}
	}
}

func TestPeeksCountNothingAndOpenNoBreaker(t *testing.T) {
	l := newFixture(t, nil)
	lim := newLimit(t, 10, limit.Day)
	l.primary.SetError(errDown)
	for range 2 * minFailures {
		l.peek("k", lim)
	}
	hit := &backend.Hit{Key: []byte("k"), Limit: lim}
	assert.Zero(t, l.hitsServed.Load())
	assert.Equal(t, Closed, l.Status().Breakers[0].State)
	assert.Zero(t, l.FailingSince(hit))
	l.take("k", lim, 0)
	assert.Equal(t, Failing, l.Status().Breakers[0].State)
	assert.NotZero(t, l.FailingSince(hit))
	l.primary.SetError(nil)
	l.peek("k", lim)
	assert.Equal(t, Failing, l.Status().Breakers[0].State, "a successful Peek does not end the failures, only a successful Take does")
}

// peek returns the answer of l.Peek for one hit on key.
func (l *fixture) peek(key string, lim *limit.Limit) backend.Result {
	peeks := make([]backend.Peek, 1)
	l.Peek(context.Background(), time.Now(), []backend.Hit{{Key: []byte(key), Limit: lim, N: 1}}, peeks)
	return peeks[0].Result
}

func TestDecisionHasTheShareThatTheFallbackApplied(t *testing.T) {
	for mode, want := range map[limit.FailureMode]int64{limit.FailLocal: 5, limit.FailAllow: 0, limit.FailDeny: 0} {
		l := newFixture(t, func(o *Options) { o.Mode, o.Ratio = mode, 0.5 })
		lim := newLimit(t, 10, limit.Day)
		assert.Nil(t, l.take("k", lim, 1).Share, "the primary has decided")
		l.primary.SetError(errDown)
		share := l.take("k", lim, 1).Share
		if want == 0 {
			assert.Nil(t, share, mode)
			continue
		}
		assert.Equal(t, want, share.Max())
	}
}

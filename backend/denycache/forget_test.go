package denycache

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

func TestWhatIsForgottenIsAskedForAgain(t *testing.T) {
	lim := newLimit(t, limit.Spec{Requests: 1})
	keys := make([]string, 100)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i)
	}
	for name, c := range map[string]struct {
		forget func(*Limiter)
		asked  int // hits, of one on each key
	}{
		"nothing": {func(*Limiter) {}, 0},
		"one": {func(l *Limiter) {
			l.Forget(&backend.Hit{Key: []byte(keys[3]), Limit: lim})
		}, 1},
		"all": {(*Limiter).ForgetAll, len(keys)},
	} {
		t.Run(name, func(t *testing.T) {
			next := newCounter()
			l := New(next, Options{SizeBytes: 1 << 20})
			for _, key := range keys {
				take(l, 0, hit(key, lim, 1))
				take(l, 0, hit(key, lim, 1))
			}
			next.asked = 0
			c.forget(l)
			for _, key := range keys {
				take(l, 0, hit(key, lim, 1))
			}
			assert.Equal(t, c.asked, next.asked)
		})
	}
}

func TestADenialFromBeforeAllWasForgottenIsNotRemembered(t *testing.T) {
	next := newCounter()
	l := New(next, Options{SizeBytes: 1 << 20})
	lim := newLimit(t, limit.Spec{Requests: 1})
	take(l, 0, hit("k", lim, 1))
	next.during = l.ForgetAll
	take(l, 0, hit("k", lim, 1))
	next.during, next.asked = nil, 0
	take(l, 0, hit("k", lim, 1))
	assert.Equal(t, 1, next.asked)
}

package denycache

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

func TestHitsOfForgottenDenialsReachTheBackend(t *testing.T) {
	lim := newLimit(t, limit.Spec{Requests: 1})
	keys := make([]string, 100)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i)
	}
	for name, c := range map[string]struct {
		forget func(*Limiter)
		want   int // how many hits reach the backend; each key gets one hit
	}{
		"no key": {func(*Limiter) {}, 0},
		"one key": {func(l *Limiter) {
			l.Forget(&backend.Hit{Key: []byte(keys[3]), Limit: lim})
		}, 1},
		"all keys": {func(l *Limiter) { l.Forget(nil) }, len(keys)},
	} {
		t.Run(name, func(t *testing.T) {
			nextLimiter := newCountingLimiter()
			l := New(backend.Counters{Limiter: nextLimiter}, Options{SizeBytes: 1 << 20})
			for _, key := range keys {
				take(l, 0, hit(key, lim, 1))
				take(l, 0, hit(key, lim, 1))
			}
			nextLimiter.hits = 0
			c.forget(l)
			for _, key := range keys {
				take(l, 0, hit(key, lim, 1))
			}
			assert.Equal(t, c.want, nextLimiter.hits)
		})
	}
}

func TestDenialFromBeforeForgetIsNotRemembered(t *testing.T) {
	nextLimiter := newCountingLimiter()
	l := New(backend.Counters{Limiter: nextLimiter}, Options{SizeBytes: 1 << 20})
	lim := newLimit(t, limit.Spec{Requests: 1})
	take(l, 0, hit("k", lim, 1))
	nextLimiter.afterTake = func() { l.Forget(nil) }
	take(l, 0, hit("k", lim, 1))
	nextLimiter.afterTake, nextLimiter.hits = nil, 0
	take(l, 0, hit("k", lim, 1))
	assert.Equal(t, 1, nextLimiter.hits)
}

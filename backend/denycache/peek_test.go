package denycache

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

func TestPeekDenialIsTheAnswerOfTheCache(t *testing.T) {
	observer := &deniedCount{}
	l := New(newCounter(), Options{SizeBytes: 1 << 20, Observer: observer})
	lim := newLimit(t, limit.Spec{Requests: 1, Unit: limit.Minute})
	peek := func(at time.Duration, n int64) (backend.Result, time.Time, bool) {
		h := hit("k", lim, n)
		return l.PeekDenial(start.Add(at), &h)
	}
	take(l, 0, hit("k", lim, 1))
	_, _, ok := peek(0, 1)
	assert.False(t, ok, "nothing is denied yet")
	take(l, time.Second, hit("k", lim, 1))

	r, since, ok := peek(2*time.Second, 1)
	assert.True(t, ok)
	assert.Equal(t, start.Add(time.Second), since.UTC())
	assert.Zero(t, observer.hits, "a peek is no decision")
	assert.Equal(t, take(l, 2*time.Second, hit("k", lim, 1))[0], r)
	assert.Equal(t, 1, observer.hits)

	_, _, ok = peek(time.Minute, 1)
	assert.False(t, ok, "the denial has ended")
	_, _, ok = peek(2*time.Second, -1)
	assert.False(t, ok, "a refund passes")
}

// deniedCount counts the hits that the cache denies.
type deniedCount struct{ hits int }

func (c *deniedCount) Denied(*backend.Hit) { c.hits++ }

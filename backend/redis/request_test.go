package redis

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A request that its Take has left goes back for the next Take, which must not
// find it answered already.
func TestWhoeverLeavesARequestLeavesNoAnswerBehind(t *testing.T) {
	const calls = 3
	for left := range calls + 1 { // after so many calls are answered
		l := &Limiter{}
		l.requests.New = func() any { return newRequest() }
		r := newRequest()
		for range calls {
			r.calls = append(r.calls, &call{request: r, lane: &lane{limiter: l}})
		}
		r.owners.Store(calls + waiting)
		for i, c := range append([]*call(nil), r.calls...) {
			if i == left {
				r.leave(l)
			}
			c.release()
		}
		if left == calls {
			r.leave(l)
		}
		assert.Empty(t, r.done, "left after %d", left)
		assert.Empty(t, r.calls, "recycled")
		assert.False(t, r.gone.Load())
	}
}

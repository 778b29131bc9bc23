package redis

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
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

// moving is a node whose slot is being moved: it has only one key of each script.
type moving struct {
	client
	mu    sync.Mutex
	asked []string
}

func (m *moving) Process(_ context.Context, cmd goredis.Cmder) error {
	if cmd.Args()[2] != 1 {
		return said("TRYAGAIN Multiple keys request during rehashing of slot")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = append(m.asked, *cmd.Args()[firstKey].(*string))
	c, ok := cmd.(once)
	if !ok {
		return errors.New("it would be sent again")
	}
	c.SetVal(string(append(appendArray(nil, 4), 1, 0, 0, 0)))
	return nil
}

// TRYAGAIN means that a script can't have all its keys: each key goes by itself, and
// the hits of one key stay together and in order.
func TestHitsOfAMovingSlotGoKeyByKey(t *testing.T) {
	lim, err := limit.New(limit.Spec{Requests: 5, Unit: limit.Day})
	require.NoError(t, err)
	node := &moving{}
	p := &pool{client: node, keys: []keys{{head: layout}}}
	l := &Limiter{main: p}
	p.lanes = []*lane{{limiter: l, pool: p}}
	r := newRequest()
	r.add(l, 0, &backend.Hit{Key: []byte("a"), Limit: lim, N: 1}, 1)
	r.add(l, 1, &backend.Hit{Key: []byte("b"), Limit: lim, N: -1}, -1)
	trip := newTrip(p, l)
	for i := range r.calls[0].hits {
		trip.hits = append(trip.hits, place{r.calls[0], i})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	trip.send(ctx)
	assert.ElementsMatch(t, []string{"v1:fw86400:a", "v1:fw86400:b"}, node.asked)
	for _, a := range r.calls[0].answers {
		assert.NoError(t, a.Err)
	}
}

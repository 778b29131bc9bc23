package local

import (
	"context"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// Quotas is a backend.QuotaStore in this process.
type Quotas struct {
	createdAt int64

	mu       sync.Mutex // guards the fields below
	states   map[string]quotaState
	sweptAt  int64 // the time of the last removal of expired states
	nowMicro func() int64
}

type quotaState struct {
	bytes  []byte
	expiry int64
}

// NewQuotas returns an empty store.
func NewQuotas() *Quotas {
	now := func() int64 { return time.Now().UnixMicro() }
	return &Quotas{createdAt: now(), states: map[string]quotaState{}, nowMicro: now}
}

// sweepInterval is the time between two removals of expired states, in microseconds.
const sweepInterval = 60_000_000

// Update implements backend.QuotaStore.
func (q *Quotas) Update(_ context.Context, changes []*backend.QuotaChange) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.nowMicro()
	if now-q.sweptAt > sweepInterval {
		q.sweptAt = now
		for key, state := range q.states {
			if state.expiry <= now {
				delete(q.states, key)
			}
		}
	}
	for _, c := range changes {
		oldState := q.states[string(c.Key)]
		if oldState.expiry <= now {
			oldState.bytes = nil
		}
		newState, ttl := c.Apply(oldState.bytes, q.createdAt, now)
		q.states[string(c.Key)] = quotaState{newState, now + ttl.Microseconds()}
		c.Err, c.Conflicts = nil, 0
	}
}

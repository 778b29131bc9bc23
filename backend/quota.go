package backend

import (
	"context"
	"time"
)

// QuotaStore keeps the states of limits that Envoys share. All replicas with the same store see the same states.
type QuotaStore interface {
	// Update applies each change to the state with its key, and sets its fields Err and Conflicts. No two changes have the
	// same key. Changes of other callers happen before or after a change, never in between.
	Update(ctx context.Context, changes []*QuotaChange)
}

// QuotaChange is a change of one state.
type QuotaChange struct {
	Key []byte

	// Apply returns the new state and its time to live. oldState is empty for a new key. now is the time of the store, and
	// intactSince is the time since which the store has certainly lost no state, both in microseconds. Apply can be called
	// several times, because another replica can change the state first. The last call counts.
	Apply func(oldState []byte, intactSince, now int64) (newState []byte, ttl time.Duration)

	Err       error // nil if the store has the new state
	Conflicts int   // how often another replica changed the state first
}

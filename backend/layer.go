package backend

import (
	"context"
	"slices"
	"time"
)

// Layer is a Limiter that decides some hits, and passes all other hits to the next Layer. The last Layer is Counters,
// which has the counters.
type Layer interface {
	Limiter

	// Peek sets peeks[i] to the answer that Take would give to hits[i]. It changes nothing.
	Peek(ctx context.Context, now time.Time, hits []Hit, peeks []Peek)

	// Forget is called after a reset through another replica. The Layer and all next Layers forget what they know
	// about the counter of h, or about all counters if h is nil.
	Forget(h *Hit)
}

// Peek is what a Layer would answer to a hit.
type Peek struct {
	Result                   // the answer of the counter to the hit with an N of 0
	Denial *RememberedDenial // the denial that a Layer remembers, or nil
}

// RememberedDenial is an answer that a Layer gives from its memory, without a counter.
type RememberedDenial struct {
	Result
	FirstDenialTime time.Time // the time of the first denial by the counter
	NextAskTime     time.Time // the time at which the Layer asks the counter again
}

// Counters is the Layer of a Limiter that keeps the counters. It remembers no answers.
type Counters struct{ Limiter }

// Peek implements Layer.
func (c Counters) Peek(ctx context.Context, now time.Time, hits []Hit, peeks []Peek) {
	PeekWith(ctx, now, c.Take, hits, peeks)
}

// Forget implements Layer.
func (Counters) Forget(*Hit) {}

// PeekWith sets the Result of each Peek. take answers the hits with an N of 0.
func PeekWith(ctx context.Context, now time.Time, take func(context.Context, time.Time, []Hit, []Result), hits []Hit, peeks []Peek) {
	hits = slices.Clone(hits)
	for i := range hits {
		hits[i].N = 0
	}
	results := make([]Result, len(hits))
	take(ctx, now, hits, results)
	for i, r := range results {
		peeks[i] = Peek{Result: r}
	}
}

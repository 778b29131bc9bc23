package backend

import (
	"context"
	"slices"
	"time"
)

// Layer is a Limiter in front of another Layer. It passes on what it does not decide. The last Layer is Counters.
type Layer interface {
	Limiter

	// Peek sets peeks[i] to what Take would answer to hits[i], and changes nothing.
	Peek(ctx context.Context, now time.Time, hits []Hit, peeks []Peek)

	// Forget drops what the Layer and those behind it remember of the counter of h, or of all counters if h
	// is nil, after a reset through another replica.
	Forget(h *Hit)
}

// Peek is what a Layer would answer to a hit.
type Peek struct {
	Result                   // of the counter to the hit with an N of 0
	Denial *RememberedDenial // the answer of a Layer from its memory, or nil
}

// RememberedDenial is an answer that a Layer gives from its memory, without a counter.
type RememberedDenial struct {
	Result
	Since time.Time // the first denial of the counter
	Until time.Time // from this time on, the Layer asks the counter again
}

// Counters is the Layer of a Limiter that keeps the counters and remembers nothing else.
type Counters struct{ Limiter }

// Peek implements Layer.
func (c Counters) Peek(ctx context.Context, now time.Time, hits []Hit, peeks []Peek) {
	PeekWith(ctx, now, c.Take, hits, peeks)
}

// Forget implements Layer.
func (Counters) Forget(*Hit) {}

// PeekWith sets the Result of each of peeks to the answer of take to the hit with an N of 0.
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

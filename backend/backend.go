// Package backend is the contract between the service and what counts for it, and
// what those who keep it have in common.
package backend

import (
	"context"
	"errors"
	"time"

	"github.com/seed-81f232ab/rls/limit"
)

// ErrUnavailable is wrapped by the error of a hit that another Limiter may be
// asked for: the backend could not be reached, was too slow, or is overloaded.
var ErrUnavailable = errors.New("rate limit backend unavailable")

// ErrNotAsked is wrapped, besides ErrUnavailable, by the error of a hit that the
// backend was not asked for, so that it says nothing of the backend.
var ErrNotAsked = errors.New("not asked")

// Hit asks one counter for N hits.
type Hit struct {
	// Key names the counter together with Limit.Tag, unambiguously. It is valid
	// only during Take; who needs it longer copies it. It can be of any length
	// and hold any bytes.
	Key []byte

	// Limit is what the counter is held to. Where it has a Past, the counter is
	// first made to have spent what those of its Past, of the same Key, have; and
	// what a negative N gives back comes off them as well (limit.GivenBack).
	Limit *limit.Limit

	// N is how many hits to charge; 0 peeks, negative gives back.
	N int64

	// Shadow marks a hit whose denial has no effect on the request, so that it
	// never keeps other hits of the request from being charged.
	Shadow bool
}

// Binds tells whether h is one of the hits of a Take that are charged all or none, by
// a Limiter that does so: if one of them is denied, none of them is charged.
func (h *Hit) Binds() bool { return h.N > 0 && !h.Shadow }

// Result answers one Hit.
type Result struct {
	limit.Result

	// Degraded tells that a stand-in has decided, as the backend is away. The
	// Result then says nothing of the backend's own counter.
	Degraded bool

	// Err tells that the hit could not be decided; the rest of the Result then
	// means nothing. It wraps ErrUnavailable where another Limiter may be tried.
	Err error
}

// Limiter decides and charges hits. Implementations are safe for concurrent use.
type Limiter interface {
	// Take charges the hits of one request at now and sets results[i] for
	// hits[i]; the two have the same length. The same counter can occur more
	// than once: the later hit then sees the earlier one's charge. Each hit has
	// its own outcome: an error of one says nothing of the others.
	//
	// now is the service's clock. An implementation with a clock of its own,
	// shared by all replicas, may use that instead.
	Take(ctx context.Context, now time.Time, hits []Hit, results []Result)
}

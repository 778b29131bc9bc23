// Package scope sends each hit to the Limiter of its limit's scope. Limits of scope
// global have one budget for all replicas. Limits of scope instance have a budget in each
// replica.
package scope

import (
	"context"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// Limiter is a backend.Limiter over two others.
type Limiter struct{ global, instance backend.Limiter }

var _ backend.Limiter = (*Limiter)(nil)

// New returns a Limiter that sends hits on limits of scope limit.Global to global, and
// hits on limits of scope limit.Instance to instance.
func New(global, instance backend.Limiter) *Limiter { return &Limiter{global, instance} }

// Take implements backend.Limiter. All-or-none hits are charged together only within
// their scope.
func (l *Limiter) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	isInstance := func(i int) bool { return hits[i].Limit.Scope == limit.Instance }
	backend.TakePart(ctx, now, l.instance, hits, results, isInstance)
	backend.TakePart(ctx, now, l.global, hits, results, func(i int) bool { return !isInstance(i) })
}

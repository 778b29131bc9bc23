// Package scope sends each hit to the Limiter of its limit's scope. Limits of scope
// global have one budget for all replicas; limits of scope instance have one for each.
package scope

import (
	"context"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// Limiter is a backend.Limiter over two others.
type Limiter struct {
	global, instance backend.Limiter
	batches          sync.Pool // of *backend.SubBatch
}

var _ backend.Limiter = (*Limiter)(nil)

// New returns a Limiter that sends hits on limits of scope limit.Global to global, and
// hits on limits of scope limit.Instance to instance.
func New(global, instance backend.Limiter) *Limiter {
	return &Limiter{global: global, instance: instance, batches: sync.Pool{New: func() any { return new(backend.SubBatch) }}}
}

// Take implements backend.Limiter. All-or-none hits are charged together only within
// their scope.
func (l *Limiter) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	instances := 0
	for i := range hits {
		if hits[i].Limit.Scope == limit.Instance {
			instances++
		}
	}
	switch instances {
	case 0:
		l.global.Take(ctx, now, hits, results)
	case len(hits):
		l.instance.Take(ctx, now, hits, results)
	default:
		l.takeScope(ctx, now, hits, results, limit.Instance, l.instance)
		l.takeScope(ctx, now, hits, results, limit.Global, l.global)
	}
}

// takeScope sends the hits of scope s to next.
func (l *Limiter) takeScope(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result, s limit.Scope, next backend.Limiter) {
	batch := l.batches.Get().(*backend.SubBatch)
	for i := range hits {
		if hits[i].Limit.Scope == s {
			batch.Add(i, hits[i])
		}
	}
	batch.Take(ctx, now, next)
	batch.CopyResults(results)
	batch.Reset()
	l.batches.Put(batch)
}

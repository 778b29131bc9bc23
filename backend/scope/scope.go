// Package scope sends each hit to the Limiter of its limit's scope: those of one
// budget for all replicas to a shared one, those of one budget per replica to one
// in this process.
package scope

import (
	"context"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// Limiter is a backend.Limiter over two.
type Limiter struct {
	global, instance backend.Limiter
	split            sync.Pool // of *backend.SubBatch
}

var _ backend.Limiter = (*Limiter)(nil)

// New returns a Limiter that asks global for limits of scope limit.Global and
// instance for those of limit.Instance.
func New(global, instance backend.Limiter) *Limiter {
	return &Limiter{global: global, instance: instance, split: sync.Pool{New: func() any { return new(backend.SubBatch) }}}
}

// Take implements backend.Limiter. The scopes don't know of each other: charging
// all hits or none is up to each Limiter, for its own.
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
		l.take(ctx, now, hits, results, limit.Instance, l.instance)
		l.take(ctx, now, hits, results, limit.Global, l.global)
	}
}

// take asks next for the hits of scope s alone.
func (l *Limiter) take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result, s limit.Scope, next backend.Limiter) {
	p := l.split.Get().(*backend.SubBatch)
	for i := range hits {
		if hits[i].Limit.Scope == s {
			p.Add(i, hits[i])
		}
	}
	p.Take(ctx, now, next)
	p.CopyResults(results)
	p.Reset()
	l.split.Put(p)
}

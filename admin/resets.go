package admin

import (
	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/limit"
)

// Cache is what a replica caches of counters.
type Cache interface {
	// Invalidate drops what is cached of the counter of a hit.
	Invalidate(*backend.Hit)

	// InvalidateAll drops everything.
	InvalidateAll()
}

// Resets drops from the caches of this replica the counters that another replica reset.
type Resets struct {
	Limits *descriptors.Store // the limits in force
	Caches []Cache
}

// allCounters is the target that a replica publishes after a reset by prefix. It is no valid target,
// so a replica of an earlier version ignores it.
const allCounters = "*"

// DropCounter drops a counter. target is the target that the other replica published.
func (r Resets) DropCounter(target string) {
	if target == allCounters {
		r.DropAll()
		return
	}
	t, err := descriptors.ParseTarget(target)
	limits := r.Limits.Load()
	if err != nil || limits == nil {
		return
	}
	ctr := newCounter(limits, t)
	if ctr == nil {
		return
	}
	for _, h := range ctr.hits(0) {
		if h.Limit.Scope == limit.Instance {
			continue // each replica has its own counters
		}
		for _, c := range r.Caches {
			c.Invalidate(&h)
		}
	}
}

// DropAll drops all counters. It is for a reset by prefix, and for a replica that may have missed
// resets.
func (r Resets) DropAll() {
	for _, c := range r.Caches {
		c.InvalidateAll()
	}
}

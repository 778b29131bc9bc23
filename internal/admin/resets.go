package admin

import (
	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/descriptors"
)

// Resets makes the Layers of this replica forget the counters that another replica reset.
type Resets struct {
	Limits *descriptors.Store // the limits in force
	Layer  backend.Layer      // of the service
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
		r.Layer.Forget(&h)
	}
}

// DropAll drops all counters. It is for a reset by prefix, and for a replica that may have missed
// resets.
func (r Resets) DropAll() { r.Layer.Forget(nil) }

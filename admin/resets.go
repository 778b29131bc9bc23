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

// Apply drops a counter. target is the target that the other replica published.
func (r Resets) Apply(target string) {
	t, err := descriptors.ParseTarget(target)
	limits := r.Limits.Load()
	if err != nil || limits == nil || limits.Domain(t.Domain) == nil {
		return
	}
	rule := limits.Domain(t.Domain).Match(t.Entries)
	if rule == nil {
		return
	}
	for _, h := range refunds(rule, rule.AppendKey(nil, t.Domain, t.Entries)) {
		if h.Limit.Scope == limit.Instance {
			continue // each replica has its own counters
		}
		for _, c := range r.Caches {
			c.Invalidate(&h)
		}
	}
}

// ApplyAll drops all counters. It is for a replica that may have missed resets.
func (r Resets) ApplyAll() {
	for _, c := range r.Caches {
		c.InvalidateAll()
	}
}

// refunds returns hits that give back all that is spent of the counters of key, one for
// each limit of rule that counts.
func refunds(rule *descriptors.Rule, key []byte) []backend.Hit {
	var hits []backend.Hit
	for _, l := range rule.Limits {
		if !l.Unlimited {
			hits = append(hits, backend.Hit{Key: key, Limit: l.Limit, N: -limit.MaxHits})
		}
	}
	return hits
}

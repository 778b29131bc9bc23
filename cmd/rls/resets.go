package main

import (
	"github.com/seed-81f232ab/rls/admin"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/limit"
)

// resets drop what this process remembers of counters that any replica has reset.
type resets struct {
	limits *descriptors.Store
	counts *counting
}

// of is told the target of a counter.
func (r resets) of(target string) {
	t, err := descriptors.ParseTarget(target)
	cfg := r.limits.Load()
	if err != nil || cfg == nil || cfg.Domain(t.Domain) == nil {
		return
	}
	rule := cfg.Domain(t.Domain).Match(t.Entries)
	if rule == nil {
		return
	}
	for _, h := range admin.GiveBacks(rule, rule.AppendKey(nil, t.Domain, t.Entries)) {
		if h.Limit.Scope == limit.Instance {
			continue
		}
		for _, m := range r.counts.memories {
			m.Invalidate(&h)
		}
	}
}

// missed is told that there may have been resets that nobody told of.
func (r resets) missed() {
	for _, m := range r.counts.memories {
		m.InvalidateAll()
	}
}

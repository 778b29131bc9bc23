package main

import (
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
)

// newExplainer returns the Explainer of the service.
func newExplainer(s *env.Settings, l limits, counters *counterBackend, candidate *candidateLimits) *explain.Explainer {
	o := counters.explain
	o.Limits = l.store
	o.AllOrNone, o.ShadowMode, o.QuotaMode = s.AllOrNone, s.ShadowMode, s.QuotaMode
	if candidate != nil {
		o.Candidate = candidate.explainer
	}
	return explain.New(o)
}

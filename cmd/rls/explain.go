package main

import (
	"log/slog"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/server"
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

// explainPage returns the page that explains the answer to a request. It shows counters, so
// it is private.
func explainPage(callers *admin.Callers, x *explain.Explainer, log *slog.Logger) server.Page {
	return privatePage(callers, server.Page{
		Path: explain.Path, Help: "why a request is limited or not; ?domain=DOMAIN&descriptor=KEY=VALUE,KEY=VALUE", Handler: x,
	}, log)
}

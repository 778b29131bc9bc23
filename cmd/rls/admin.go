package main

import (
	"log/slog"

	"github.com/seed-81f232ab/rls/admin"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/server"
)

// adminCallers returns the callers that may use the admin API.
func adminCallers(s *env.Settings) admin.Callers {
	return admin.Callers{Tokens: s.AdminTokens, ClientCerts: s.DebugTLSClientCACert != ""}
}

// hasAdminCallers reports whether any caller can be authorized.
func hasAdminCallers(s *env.Settings) bool {
	return len(s.AdminTokens) > 0 || s.DebugTLSClientCACert != ""
}

// adminPages returns the page of the admin API, or none if no caller could be authorized.
// overrides is nil without OVERRIDES_ENABLED.
func adminPages(s *env.Settings, l limits, counters *counterBackend, overrides *redisOverrides, log *slog.Logger) []server.Page {
	if !hasAdminCallers(s) {
		return nil
	}
	o := admin.Options{
		Callers: adminCallers(s),
		Counters: admin.Counters{
			Limits:     l.store,
			Uncached:   counters.uncached,
			Limiter:    counters.Limiter,
			PerReplica: counters.perReplica,
		},
		Log: log,
	}
	if overrides != nil {
		o.Overrides, o.Counters.PublishReset = overrides, overrides.PublishReset
	}
	return []server.Page{{Path: admin.Prefix, Help: "overrides of limits, and counters; needs a token or a client certificate", Handler: admin.New(o)}}
}

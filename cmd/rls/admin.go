package main

import (
	"log/slog"

	"github.com/seed-81f232ab/rls/admin"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/server"
)

// adminPages returns the page of the admin API, or none if no caller could be authorized.
// overrides is nil without OVERRIDES_ENABLED.
func adminPages(s *env.Settings, l limits, counters *counterBackend, overrides *redisOverrides, log *slog.Logger) []server.Page {
	if len(s.AdminTokens) == 0 && s.DebugTLSClientCACert == "" {
		return nil
	}
	o := admin.Options{
		Tokens:      s.AdminTokens,
		ClientCerts: s.DebugTLSClientCACert != "",
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

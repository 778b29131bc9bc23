package main

import (
	"log/slog"
	"time"

	"github.com/seed-81f232ab/rls/admin"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/server"
)

// adminPages is the admin API, where there is somebody who may use it. kept is nil
// without OVERRIDES_ENABLED.
func adminPages(s *env.Settings, l *limits, c *counting, kept *redisOverrides, log *slog.Logger) []server.Page {
	if len(s.AdminTokens) == 0 && s.DebugTLSClientCACert == "" {
		return nil
	}
	o := admin.Options{
		Tokens:      s.AdminTokens,
		ClientCerts: s.DebugTLSClientCACert != "",
		Counters:    admin.Counters{Limits: &l.store, Read: c.below, Take: c.Limiter, Own: c.own, Now: time.Now},
		Log:         log,
	}
	if kept != nil {
		o.Overrides, o.Counters.Tell = kept, kept.TellReset
	}
	return []server.Page{{Path: admin.Prefix, Help: "overrides of limits, and counters; needs a token or client certificate", Handler: admin.New(o)}}
}

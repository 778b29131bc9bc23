package main

import (
	"log/slog"
	"time"

	"github.com/seed-81f232ab/rls/admin"
	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/server"
)

// adminPages is the admin API, where there is somebody who may use it. kept is nil
// without LIMITS_REDIS.
func adminPages(s *settings, l *limits, c *counting, kept *redisOverrides, log *slog.Logger) []server.Page {
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

// forgetCounter returns what drops all that this process remembers of a counter that
// any replica has reset.
func forgetCounter(limits *descriptors.Store, forget func(*backend.Hit)) func(counter string) {
	return func(counter string) {
		t, err := descriptors.ParseTarget(counter)
		cfg := limits.Load()
		if err != nil || cfg == nil || cfg.Domain(t.Domain) == nil {
			return
		}
		rule := cfg.Domain(t.Domain).Match(t.Entries)
		if rule == nil {
			return
		}
		key := rule.AppendKey(nil, t.Domain, t.Entries)
		for _, l := range rule.Limits {
			if l.Unlimited || l.Scope == limit.Instance {
				continue
			}
			forget(&backend.Hit{Key: key, Limit: l.Limit})
		}
	}
}

package main

import (
	"context"
	"fmt"
	"log/slog"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/base/watchfile"
	"github.com/seed-81f232ab/rls/internal/observe/events"
	"github.com/seed-81f232ab/rls/internal/server"
	"github.com/seed-81f232ab/rls/service/callers"
)

// bindCallers returns next, or a service in front of next that refuses domains to callers. It
// also returns the function that refuses domains, or nil. It follows the file of the callers
// until p ends.
func bindCallers(p *process, s *env.Settings, next rlsv3.RateLimitServiceServer, e *events.Events) (
	_ rlsv3.RateLimitServiceServer, checkDomain func(context.Context, string) error, _ error,
) {
	if s.CallerDomainsFile == "" {
		return next, nil, nil
	}
	refused, reloaded := e.Metrics.Callers()
	file, err := callers.Open(s.CallerDomainsFile, func(err error) {
		reloaded(err)
		e.CallersReloaded(s.CallerDomainsFile, err)
	}, e.Log)
	if err != nil {
		return nil, nil, err
	}
	p.start(file.Run)
	bound := callers.NewService(next, file, refused, e.Log)
	return bound, bound.CheckDomain, nil
}

// newCallers returns the callers that may use the admin API. It keeps those of
// ADMIN_TOKENS_FILE up to date until p ends.
func newCallers(p *process, s *env.Settings, log *slog.Logger) (*admin.Callers, error) {
	callers := &admin.Callers{Tokens: s.AdminTokens, ClientCerts: s.DebugTLSClientCACert != ""}
	if s.AdminTokensFile == "" {
		return callers, nil
	}
	callers.File = &admin.TokenFile{}
	apply := func(contents [][]byte) error { return callers.File.Set(contents[0]) }
	file, err := watchfile.Read(watchfile.Options{Paths: []string{s.AdminTokensFile}, Content: "admin tokens", Apply: apply, Log: log})
	if err != nil {
		return nil, fmt.Errorf("ADMIN_TOKENS_FILE=%q: %w", s.AdminTokensFile, err)
	}
	p.start(file.Watch)
	return callers, nil
}

// adminPages returns the page of the admin API, or none if no caller could be authorized.
// overrides is nil if there are none.
func adminPages(callers *admin.Callers, l limits, counters *counterBackend, overrides *runtimeOverrides, log *slog.Logger) []server.Page {
	if !callers.CanAuthorize() {
		return nil
	}
	o := admin.Options{
		Callers: *callers,
		Counters: admin.Counters{
			Limits:     l.store,
			Layer:      counters.Layer,
			PerReplica: counters.perReplica,
			Prefixes:   counters.prefixes,
		},
		Log: log,
	}
	if overrides != nil {
		o.Overrides, o.Counters.PublishReset = overrides, overrides.publishReset
	}
	return []server.Page{{Path: admin.Prefix, Help: "overrides of limits, rules, switches and counters; needs a token or a client certificate", Handler: admin.New(o), AnyHost: true}}
}

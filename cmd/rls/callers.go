package main

import (
	"context"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/observe/events"
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

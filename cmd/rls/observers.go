package main

import (
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/observe/events"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/service"
)

// observers is "off" in a build that observes no calls. `make bench-observers` compares such
// a build with an ordinary one.
var observers string

// callObservers returns the observers of calls: those given and the metrics.
func callObservers(s *env.Settings, e *events.Events, others ...service.Observer) []service.Observer {
	if observers == "off" {
		return nil
	}
	rules := metrics.RuleOptions{NearLimitRatio: float32(s.NearLimitRatio), MaxSeries: s.MetricsMaxSeries, Log: e.Log}
	return append(others, e.Metrics.Service(), e.Metrics.RuleObserver(rules))
}

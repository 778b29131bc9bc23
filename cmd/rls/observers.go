package main

import (
	"log/slog"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/server"
	"github.com/seed-81f232ab/rls/service"
)

// observers is "off" in a build that observes no calls. `make bench-observers` compares such
// a build with an ordinary one.
var observers string

// callObservers returns the observers of calls: those given and the metrics.
func callObservers(s *env.Settings, meter *metrics.Metrics, log *slog.Logger, others ...service.Observer) []service.Observer {
	if observers == "off" {
		return nil
	}
	return append(others, meter.Service(), meter.RuleObserver(ruleOptions(s, log)))
}

// observeMethods lets meter observe the gRPC methods of the server.
func observeMethods(o *server.Options, meter *metrics.Metrics) {
	if observers != "off" {
		o.ObserveMethod = meter.Server()
	}
}

func ruleOptions(s *env.Settings, log *slog.Logger) metrics.RuleOptions {
	return metrics.RuleOptions{
		NearLimitRatio: float32(s.NearLimitRatio),
		MaxSeries:      s.MetricsMaxSeries,
		Log:            log,
	}
}

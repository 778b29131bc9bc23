package main

import (
	"log/slog"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/observe/statsd"
)

// sendStats sends metrics to where the settings say, until p ends.
func sendStats(p *process, s *env.Settings, meter *metrics.Metrics, log *slog.Logger) {
	o := statsd.Options{
		Gatherer:  meter,
		Rules:     meter.KeyCounts,
		ExtraTags: s.ExtraTags,
		Interval:  s.StatsFlushInterval,
		Log:       log,
	}
	switch s.StatsSink() {
	case env.SinkNone:
		return
	case env.SinkStatsd:
		o.Server = &statsd.Server{Network: s.StatsdProtocol, Host: s.StatsdHost, Port: s.StatsdPort}
	case env.SinkDogStatsd:
		mogrifiers, _ := s.Mogrifiers() // package env has checked them
		o.Server = &statsd.Server{Network: "udp", Host: s.StatsdHost, Port: s.StatsdPort, DogStatsD: true, Mogrifiers: mogrifiers}
	}
	log.Info("metrics sent at intervals", "to", s.StatsSink(), "interval", s.StatsFlushInterval)
	p.atEnd(statsd.New(o).Close)
}

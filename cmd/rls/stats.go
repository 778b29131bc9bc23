package main

import (
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/observe/events"
	"github.com/seed-81f232ab/rls/internal/observe/statsd"
)

// sendStats sends metrics to where the settings say, until p ends.
func sendStats(p *process, s *env.Settings, e *events.Events) {
	o := statsd.Options{
		Gatherer:  e.Metrics,
		Rules:     e.Metrics.KeyCounts,
		ExtraTags: s.ExtraTags,
		Interval:  s.StatsFlushInterval,
		Log:       e.Log,
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
	e.Log.Info("metrics sent at intervals", "to", s.StatsSink(), "interval", s.StatsFlushInterval)
	p.atEnd(statsd.New(o).Close)
}

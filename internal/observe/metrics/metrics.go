// Package metrics serves the metrics of the process to Prometheus. Each file holds the
// metrics of one package and implements the Observer of that package. A new metric of an
// event that an Observer already receives belongs into one file here.
//
// Metrics that envoyproxy/ratelimit has as well keep its names. Names of our own begin
// with rls_.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	dto "github.com/prometheus/client_model/go"
)

// Metrics holds all metrics of the process. Each package that is in use registers its
// metrics once, through the method of its name.
type Metrics struct {
	registry *prometheus.Registry
	auto     promauto.Factory // registers what it makes
	rules    *rules
	scraping chan struct{} // has a value while a scrape is in progress

	withoutRedis *withoutRedis // nil until Fallback is called
}

// New returns Metrics of the Go runtime and the process.
func New() *Metrics {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return &Metrics{registry: r, auto: promauto.With(r), rules: newRules(), scraping: make(chan struct{}, 1)}
}

// Gather implements prometheus.Gatherer. It returns all metrics but those of rules, which can be many.
func (m *Metrics) Gather() ([]*dto.MetricFamily, error) { return m.registry.Gather() }

func (m *Metrics) newCounter(name, help string) prometheus.Counter {
	return m.auto.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func (m *Metrics) newGauge(name, help string) prometheus.Gauge {
	return m.auto.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

// Package metrics serves the metrics of the process to Prometheus. Each file has the metrics of one package and implements
// the Observer of the package. If an Observer already receives an event, a new metric of the event changes only one file.
//
// A metric that envoyproxy/ratelimit has as well keeps its name. The names of all other metrics begin with rls_.
package metrics

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	dto "github.com/prometheus/client_model/go"
)

// Metrics holds all metrics of the process. Each package in use registers its metrics once, through its method.
type Metrics struct {
	registry      *prometheus.Registry
	factory       promauto.Factory // makes metrics and registers them
	rules         *rules
	runningScrape chan struct{} // has a value while a scrape is in progress

	connections map[string]func() int // open connections; the key is the name of the listener

	certificateExpiry *prometheus.GaugeVec
	fallbackDecisions *fallbackDecisions // nil until Fallback is called
	givenUpCalls      prometheus.Counter // nil until Service is called

	ResponseTimeMillis bool // report response times to Prometheus in milliseconds; set it before the first scrape
}

// New returns Metrics of the Go runtime and the process.
func New() *Metrics {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m := &Metrics{
		registry: registry, factory: promauto.With(registry), rules: &rules{limits: limitTable{limitsByRule: map[string][]*limitSeries{}}}, runningScrape: make(chan struct{}, 1),
		connections: map[string]func() int{},
	}
	m.certificateExpiry = m.newGauges("rls_certificate_expiry_timestamp_seconds", "Time at which the certificate of a listener with TLS expires.", "listener")
	return m
}

// SetCertificateExpiry sets the time at which the certificate of a listener expires.
func (m *Metrics) SetCertificateExpiry(listener string, expiry time.Time) {
	m.certificateExpiry.WithLabelValues(listener).Set(float64(expiry.Unix()))
}

// Gather implements prometheus.Gatherer. It returns all metrics except the metrics of rules, because there can be many
// rules.
func (m *Metrics) Gather() ([]*dto.MetricFamily, error) { return m.registry.Gather() }

func (m *Metrics) newCounter(name, help string) prometheus.Counter {
	return m.factory.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func (m *Metrics) newCounters(name, help string, labels ...string) *prometheus.CounterVec {
	return m.factory.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func (m *Metrics) newGauge(name, help string) prometheus.Gauge {
	return m.factory.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

func (m *Metrics) newGauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return m.factory.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

// registerReader registers read, which sends the current values of metrics at each scrape. Several scrapes may call read
// at the same time.
func (m *Metrics) registerReader(read func(scrape)) {
	m.registry.MustRegister(scrapeReader(read))
}

// scrapeReader is a prometheus.Collector.
type scrapeReader func(scrape)

// Describe implements prometheus.Collector. It sends nothing, because the metrics are known at a scrape.
func (scrapeReader) Describe(chan<- *prometheus.Desc) {}

func (r scrapeReader) Collect(metrics chan<- prometheus.Metric) { r(metrics) }

// scrape receives the metrics of a scrapeReader. The parameter labels of the methods has names, each followed by its value.
type scrape chan<- prometheus.Metric

func (s scrape) sendGauge(name, help string, value float64, labels ...string) {
	s.send(prometheus.GaugeValue, name, help, value, labels)
}

func (s scrape) sendCounter(name, help string, value float64, labels ...string) {
	s.send(prometheus.CounterValue, name, help, value, labels)
}

func (s scrape) send(kind prometheus.ValueType, name, help string, value float64, labels []string) {
	var names, values []string
	for label := range slices.Chunk(labels, 2) {
		names, values = append(names, label[0]), append(values, label[1])
	}
	s <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), kind, value, values...)
}

func oneIf(condition bool) float64 {
	if condition {
		return 1
	}
	return 0
}

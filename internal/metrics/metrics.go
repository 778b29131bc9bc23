// Package metrics counts what operators watch the service by, for Prometheus. There
// are few yet: what becomes of limits, and of Redis.
package metrics

import (
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics are the service's metrics. The names of those that envoyproxy/ratelimit has
// as well are its own.
type Metrics struct {
	registry *prometheus.Registry

	limitsLoaded, limitsRefused prometheus.Counter
	problems, overrides         *prometheus.GaugeVec

	xdsUp, redisUp                          prometheus.Gauge
	redisChanges                            *prometheus.CounterVec
	redisAway, servedWithout, chargedBehind prometheus.Counter
}

// New makes Metrics at zero, without those of Redis.
func New() *Metrics {
	m := &Metrics{
		registry:      prometheus.NewRegistry(),
		limitsLoaded:  counter("ratelimit_service_config_load_success", "Sets of limits put in force."),
		limitsRefused: counter("ratelimit_service_config_load_error", "Sets of limits refused."),
		problems: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rls_limits_problem", Help: "1 for each of the first problems that keep newer limits or overrides from being in force.",
		}, []string{"problem"}),
		overrides: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rls_overrides", Help: "Overrides of limits that are in force, and that are refused.",
		}, []string{"state"}),
		xdsUp: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rls_xds_up", Help: "1 while the xDS server says what the limits are, 0 while it can't be reached or is silent.",
		}),
		redisUp: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rls_redis_up", Help: "1 while all of Redis is asked, 0 while part of it or all is left alone.",
		}),
		redisChanges: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rls_redis_state_changes_total", Help: "Times that Redis went (down) and came back (up).",
		}, []string{"state"}),
		redisAway:     counter("rls_redis_away_seconds_total", "Time that Redis was away, counted when it is back."),
		servedWithout: counter("rls_redis_fallback_hits_total", "Hits decided without Redis, counted when it is back."),
		chargedBehind: counter("rls_redis_carried_hits_total", "Hits charged to Redis when it was back."),
	}
	m.Overrides(0, 0)
	m.registry.MustRegister(m.limitsLoaded, m.limitsRefused, m.problems, m.overrides,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// WithXDS adds the metric of an xDS server, which is not up yet.
func (m *Metrics) WithXDS() { m.registry.MustRegister(m.xdsUp) }

// WithRedis adds the metrics of Redis, which is up.
func (m *Metrics) WithRedis() {
	m.redisUp.Set(1)
	for _, state := range []string{"down", "up"} {
		m.redisChanges.WithLabelValues(state)
	}
	m.registry.MustRegister(m.redisUp, m.redisChanges, m.redisAway, m.servedWithout, m.chargedBehind)
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

// Handler serves the metrics to Prometheus.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// LimitsLoaded counts a set of limits put in force.
func (m *Metrics) LimitsLoaded() { m.limitsLoaded.Inc() }

// LimitsRefused counts a set of limits refused.
func (m *Metrics) LimitsRefused() { m.limitsRefused.Inc() }

// LimitsProblems tells all that keeps newer limits or overrides from being in force
// now, in words with their place.
func (m *Metrics) LimitsProblems(problems []string) {
	m.problems.Reset()
	for _, p := range problems {
		m.problems.WithLabelValues(strings.ToValidUTF8(p, "?")).Set(1)
	}
}

// Overrides tells how many overrides are in force and how many are refused. One whose
// value before stays in force is both.
func (m *Metrics) Overrides(inForce, refused int) {
	m.overrides.WithLabelValues("in_force").Set(float64(inForce))
	m.overrides.WithLabelValues("refused").Set(float64(refused))
}

// XDS tells whether the xDS server says what the limits are.
func (m *Metrics) XDS(up bool) {
	m.xdsUp.Set(0)
	if up {
		m.xdsUp.Set(1)
	}
}

// RedisDown tells that Redis went.
func (m *Metrics) RedisDown() {
	m.redisUp.Set(0)
	m.redisChanges.WithLabelValues("down").Inc()
}

// RedisBack tells that Redis is back: how long it was away, how many hits were
// decided without it, and how many of these were charged to it since.
func (m *Metrics) RedisBack(away time.Duration, served, carried int64) {
	m.redisUp.Set(1)
	m.redisChanges.WithLabelValues("up").Inc()
	m.redisAway.Add(away.Seconds())
	m.servedWithout.Add(float64(served))
	m.chargedBehind.Add(float64(carried))
}

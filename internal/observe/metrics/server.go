package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/seed-81f232ab/rls/internal/server/admission"
)

// responseTimes are the buckets of response times in seconds. A call without Redis takes less
// than 0.1 ms, and a call that waits for Redis takes at most REDIS_TIMEOUT.
var responseTimes = []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

const responseTimeName = "ratelimit_service_response_time_seconds"

func toMillis(h *dto.Histogram) {
	*h.SampleSum *= 1000
	for _, b := range h.GetBucket() {
		*b.UpperBound *= 1000
	}
}

// Server registers the metrics of package server and returns its server.Options.ObserveMethod.
func (m *Metrics) Server() func(method string) (observeCall func(duration time.Duration)) {
	requests := m.newCounters("ratelimit_service_total_requests", "Unary gRPC calls.", "grpc_method")
	durations := m.factory.NewHistogramVec(prometheus.HistogramOpts{
		Name: responseTimeName, Help: "Time from the arrival of a unary gRPC call until its answer.", Buckets: responseTimes,
	}, []string{"grpc_method"})
	return func(method string) func(time.Duration) {
		count, durations := requests.WithLabelValues(method), durations.WithLabelValues(method)
		return func(duration time.Duration) {
			count.Inc()
			durations.Observe(duration.Seconds())
		}
	}
}

// Build registers the metric of the build.
func (m *Metrics) Build(version, commit, date, goVersion string) {
	m.newGauges("rls_build_info", "1, with the version of rls and of Go, and the commit of rls and its date.", "version", "commit", "date", "go_version").
		WithLabelValues(version, commit, date, goVersion).Set(1)
}

// Admission registers the metrics of the connections to one listener. Call it before the listeners open.
func (m *Metrics) Admission(listener string, connections func() int, pendingBytes func() int64) {
	m.connections[listener] = connections
	m.registerReader(func(s scrape) {
		s.sendGauge("rls_connections", "Open connections of clients.", float64(connections()), "listener", listener)
		s.sendGauge("rls_pending_request_bytes", "Request bytes of unanswered calls. A request of up to 4 KiB that comes in one frame does not count.", float64(pendingBytes()), "listener", listener)
	})
}

// Connections returns the number of open connections to the listeners with these names.
func (m *Metrics) Connections(listeners ...string) (sum int) {
	for _, name := range listeners {
		if connections := m.connections[name]; connections != nil {
			sum += connections()
		}
	}
	return sum
}

// Refused registers the count of refused connections to one listener. The returned function counts a refusal.
func (m *Metrics) Refused(listener string) func(admission.Reason) {
	var counters [len(admission.Reasons)]prometheus.Counter
	for _, reason := range admission.Reasons {
		counters[reason] = m.factory.NewCounter(prometheus.CounterOpts{
			Name:        "rls_connections_refused_total",
			Help:        "Connections that were refused or cut, because a client exceeded a bound.",
			ConstLabels: prometheus.Labels{"listener": listener, "reason": reason.String()},
		})
	}
	return func(reason admission.Reason) { counters[reason].Inc() }
}

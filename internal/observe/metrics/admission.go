package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/internal/server/admission"
)

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

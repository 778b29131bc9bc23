package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/internal/server/admission"
)

// Admission registers the metrics of the connections to one listener.
func (m *Metrics) Admission(listener string, connections func() int, pendingBytes func() int64) {
	m.atScrape(func(s scrape) {
		s.gauge("rls_connections", "Open connections of clients.", float64(connections()), "listener", listener)
		s.gauge("rls_pending_request_bytes", "Request bytes of unanswered calls. Whole requests up to 4 KiB do not count.", float64(pendingBytes()), "listener", listener)
	})
}

// Refused registers the count of refused connections to one listener, and returns the function that counts.
func (m *Metrics) Refused(listener string) func(admission.Reason) {
	var counters [len(admission.Reasons)]prometheus.Counter
	for _, reason := range admission.Reasons {
		counters[reason] = m.auto.NewCounter(prometheus.CounterOpts{
			Name:        "rls_connections_refused_total",
			Help:        "Connections that were refused or cut, because a client exceeded a bound.",
			ConstLabels: prometheus.Labels{"listener": listener, "reason": reason.String()},
		})
	}
	return func(reason admission.Reason) { counters[reason].Inc() }
}

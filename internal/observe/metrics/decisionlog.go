package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/internal/observe/decisionlog"
)

// decisionLog counts the records of the decision log.
type decisionLog struct {
	written prometheus.Counter
	dropped map[decisionlog.DropReason]prometheus.Counter
}

// DecisionLog registers the metrics of the decision log and returns its Observer.
func (m *Metrics) DecisionLog() decisionlog.LogObserver {
	dropped := m.auto.NewCounterVec(prometheus.CounterOpts{
		Name: "rls_decision_log_dropped_total",
		Help: "Records that are missing in the decision log, by reason: rate (DECISION_LOG_MAX_PER_SECOND), buffer_full (the log is written too slowly), write_error.",
	}, []string{"reason"})
	o := &decisionLog{
		written: m.newCounter("rls_decision_log_records_total", "Records that were written to the decision log."),
		dropped: map[decisionlog.DropReason]prometheus.Counter{},
	}
	for _, reason := range decisionlog.DropReasons {
		o.dropped[reason] = dropped.WithLabelValues(string(reason))
	}
	return o
}

// RecordsWritten implements decisionlog.LogObserver.
func (o *decisionLog) RecordsWritten(count uint64) { o.written.Add(float64(count)) }

// RecordsDropped implements decisionlog.LogObserver.
func (o *decisionLog) RecordsDropped(reason decisionlog.DropReason, count uint64) {
	o.dropped[reason].Add(float64(count))
}

package metrics

import "github.com/seed-81f232ab/rls/internal/observe/decisionlog"

// DecisionLog registers the metrics of the decision log. Each scrape reads stats.
func (m *Metrics) DecisionLog(stats func() decisionlog.Stats) {
	m.registerReader(func(s scrape) {
		currentStats := stats()
		s.sendCounter("rls_decision_log_records_total", "Records that were written to the decision log.", float64(currentStats.Written))
		for reason, count := range currentStats.Dropped {
			s.sendCounter("rls_decision_log_dropped_total",
				"Records that are missing in the decision log, by reason: rate (DECISION_LOG_MAX_PER_SECOND), buffer_full (the log is written too slowly), write_error.",
				float64(count), "reason", decisionlog.DropReason(reason).String())
		}
	})
}

package metrics

import (
	"github.com/seed-81f232ab/rls/internal/observe/candidate"
	"github.com/seed-81f232ab/rls/internal/observe/decisionlog"
)

// Candidate registers the metrics of package candidate. Each scrape reads status.
func (m *Metrics) Candidate(status func() candidate.Status) {
	m.registerReader(func(s scrape) {
		currentStatus := status()
		s.sendGauge("rls_candidate_valid", "1 if the newest candidate limits are evaluated, else 0.", oneIf(currentStatus.Problem == nil))
		for _, r := range candidate.Results {
			s.sendCounter("rls_candidate_calls_total", "Calls that the candidate limits decided too (LIMITS_CANDIDATE), by result.", float64(currentStatus.TotalCalls[r]), "result", r.String())
		}
		for _, r := range currentStatus.Rules {
			s.sendCounter("rls_candidate_newly_denied_total", "Descriptors that only the candidate limits deny, by rule of the candidate.", float64(r.NewlyDenied), "rule", validText(r.Path))
		}
	})
}

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

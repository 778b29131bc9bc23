package metrics

import "github.com/seed-81f232ab/rls/internal/observe/candidate"

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

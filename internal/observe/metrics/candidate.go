package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/internal/observe/candidate"
)

// maxCandidateRules bounds the values of the label rule.
const maxCandidateRules = 1000

// candidateCalls implements candidate.Observer.
type candidateCalls struct {
	calls       []prometheus.Counter // by candidate.Result
	newlyDenied *prometheus.CounterVec
	rules       boundedMap[prometheus.Counter]
}

// Candidate registers the metrics of package candidate. hasProblem reports whether the newest
// candidate has mistakes.
func (m *Metrics) Candidate(hasProblem func() bool) candidate.Observer {
	calls := m.auto.NewCounterVec(prometheus.CounterOpts{
		Name: "rls_candidate_calls_total", Help: "Calls that the candidate limits decided too (LIMITS_CANDIDATE), by result.",
	}, []string{"result"})
	m.auto.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "rls_candidate_valid", Help: "1 if the newest candidate limits are evaluated, else 0.",
	}, func() float64 {
		if hasProblem() {
			return 0
		}
		return 1
	})
	c := &candidateCalls{
		newlyDenied: m.auto.NewCounterVec(prometheus.CounterOpts{
			Name: "rls_candidate_newly_denied_total", Help: "Descriptors that only the candidate limits deny, by rule of the candidate.",
		}, []string{"rule"}),
		rules: boundedMap[prometheus.Counter]{maxTexts: maxCandidateRules},
	}
	for _, r := range candidate.Results {
		c.calls = append(c.calls, calls.WithLabelValues(r.String()))
	}
	return c
}

// Evaluated implements candidate.Observer.
func (c *candidateCalls) Evaluated(r candidate.Result) { c.calls[r].Inc() }

// NewlyDenied implements candidate.Observer.
func (c *candidateCalls) NewlyDenied(rule string) {
	counter := c.rules.find([]byte(rule), func() *prometheus.Counter { return c.counterOf(rule) })
	if counter == nil {
		counter = c.counterOf(otherValue)
	}
	(*counter).Inc()
}

func (c *candidateCalls) counterOf(rule string) *prometheus.Counter {
	counter := c.newlyDenied.WithLabelValues(validText(rule))
	return &counter
}

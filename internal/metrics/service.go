package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/service"
)

// The results of a decision.
const (
	resultOK = iota
	resultOverLimit
	resultShadowed
)

// resultNames are the values of the label result.
var resultNames = [...]string{resultOK: "ok", resultOverLimit: "over_limit", resultShadowed: "shadowed"}

// Service counts decisions.
type Service struct {
	decisions [len(resultNames)][len(backend.Sources)]prometheus.Counter
}

var _ service.Observer = (*Service)(nil)

// Service registers the metrics of package service and returns its Observer.
func (m *Metrics) Service() *Service {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rls_decisions_total",
		Help: "Decisions by result and source. One request makes a decision for each limit that it matches. Denials by limits in shadow mode have the result shadowed.",
	}, []string{"result", "source"})
	m.registry.MustRegister(vec)
	s := &Service{}
	for result, name := range resultNames {
		for _, source := range backend.Sources {
			s.decisions[result][source] = vec.WithLabelValues(name, source.String())
		}
	}
	return s
}

// Decided implements service.Observer.
func (s *Service) Decided(rule *descriptors.Rule, _ *descriptors.RateLimit, _ int64, r backend.Result) {
	result := resultOK
	switch {
	case r.Allowed:
	case rule.ShadowMode:
		result = resultShadowed
	default:
		result = resultOverLimit
	}
	s.decisions[result][r.Source].Inc()
}

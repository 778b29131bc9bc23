package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// expressions counts expressions that could not be evaluated.
type expressions struct{ failures *prometheus.CounterVec }

// Expressions registers the metric of package descriptors and returns its Observer.
func (m *Metrics) Expressions() descriptors.Observer {
	return &expressions{m.auto.NewCounterVec(prometheus.CounterOpts{
		Name: "rls_expression_failures_total", Help: "Expressions of conditions that could not be evaluated for a request, so that their descriptors did not match.",
	}, []string{"domain"})}
}

// ExpressionFailed implements descriptors.Observer. domain is one of the limits files.
func (e *expressions) ExpressionFailed(domain string, _ *limitsfile.Descriptor, _ error) {
	e.failures.WithLabelValues(validText(domain)).Inc()
}

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// conditions is a descriptors.Observer that counts conditions that could not be tested.
type conditions struct{ failures, notTested *prometheus.CounterVec }

// Conditions registers the metrics of package descriptors and returns its Observer.
func (m *Metrics) Conditions() descriptors.Observer {
	return &conditions{
		failures:  m.newCounters("rls_expression_failures_total", "Expressions of conditions that could not be evaluated for a request, so that their descriptors did not match.", "domain"),
		notTested: m.newCounters("rls_conditions_not_tested_total", "Descriptors of requests whose conditions were not tested, because the call had spent its steps.", "domain"),
	}
}

// ExpressionFailed implements descriptors.Observer. domain is one of the limits files.
func (c *conditions) ExpressionFailed(domain string, _ *limitsfile.Descriptor, _ error) {
	c.failures.WithLabelValues(validText(domain)).Inc()
}

// ConditionNotTested implements descriptors.Observer. domain is one of the limits files.
func (c *conditions) ConditionNotTested(domain string, _ *limitsfile.Descriptor) {
	c.notTested.WithLabelValues(validText(domain)).Inc()
}

package metrics

// Conditions registers the metrics of conditions. countFailure counts an expression of a domain that could not be
// evaluated. countUntested counts a condition of a domain that was not tested.
func (m *Metrics) Conditions() (countFailure, countUntested func(domain string)) {
	failures := m.newCounters("rls_expression_failures_total", "Expressions of conditions that could not be evaluated for a request, so that their descriptors did not match.", "domain")
	untestedConditions := m.newCounters("rls_conditions_not_tested_total", "Descriptors of requests whose conditions were not tested, because the call had spent its steps.", "domain")
	return func(domain string) { failures.WithLabelValues(validText(domain)).Inc() },
		func(domain string) { untestedConditions.WithLabelValues(validText(domain)).Inc() }
}

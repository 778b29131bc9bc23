package metrics

// Conditions registers the metrics of conditions. The returned functions count a condition of a domain: failed counts
// an expression that could not be evaluated, and notTested counts a condition that was not tested.
func (m *Metrics) Conditions() (failed, notTested func(domain string)) {
	failures := m.newCounters("rls_expression_failures_total", "Expressions of conditions that could not be evaluated for a request, so that their descriptors did not match.", "domain")
	untested := m.newCounters("rls_conditions_not_tested_total", "Descriptors of requests whose conditions were not tested, because the call had spent its steps.", "domain")
	return func(domain string) { failures.WithLabelValues(validText(domain)).Inc() },
		func(domain string) { untested.WithLabelValues(validText(domain)).Inc() }
}

package metrics

// Conditions registers the metrics of conditions that could not be tested, and returns the functions that count one
// of a domain of the limits files.
func (m *Metrics) Conditions() (failed, notTested func(domain string)) {
	failures := m.newCounters("rls_expression_failures_total", "Expressions of conditions that could not be evaluated for a request, so that their descriptors did not match.", "domain")
	untested := m.newCounters("rls_conditions_not_tested_total", "Descriptors of requests whose conditions were not tested, because the call had spent its steps.", "domain")
	return func(domain string) { failures.WithLabelValues(validText(domain)).Inc() },
		func(domain string) { untested.WithLabelValues(validText(domain)).Inc() }
}

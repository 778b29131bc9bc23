package metrics

// Callers registers the metrics of callers. countRefusal counts a refused call. setValid gets the error of the newest file
// of callers, or nil if this file is in force.
func (m *Metrics) Callers() (countRefusal func(), setValid func(error)) {
	refusedCalls := m.newCounter("rls_calls_forbidden_total", "Calls with a domain that the caller may not use (CALLER_DOMAINS_FILE).")
	validGauge := m.newGauge("rls_callers_file_valid", "1 if the newest CALLER_DOMAINS_FILE is in force, else 0.")
	validGauge.Set(1)
	return refusedCalls.Inc, func(err error) { validGauge.Set(oneIf(err == nil)) }
}

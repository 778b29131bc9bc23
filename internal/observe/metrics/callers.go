package metrics

// Callers registers the metrics of callers. The function refused counts a call that was refused, and the function
// reloaded reports whether the newest file of callers is in force.
func (m *Metrics) Callers() (refused func(), reloaded func(error)) {
	calls := m.newCounter("rls_calls_forbidden_total", "Calls with a domain that the caller may not use (CALLER_DOMAINS_FILE).")
	valid := m.newGauge("rls_callers_file_valid", "1 if the newest CALLER_DOMAINS_FILE is in force, else 0.")
	valid.Set(1)
	return calls.Inc, func(err error) { valid.Set(oneIf(err == nil)) }
}

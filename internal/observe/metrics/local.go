package metrics

// Local registers the metrics of the counters in this process. Each scrape calls keys, evictions and bytes.
func (m *Metrics) Local(keys func() int, evictions, bytes func() int64) {
	m.registerReader(func(s scrape) {
		s.sendGauge("rls_local_keys", "Counters in the memory of this process.", float64(keys()))
		s.sendGauge("rls_local_memory_bytes", "Memory of the counters in this process.", float64(bytes()))
		s.sendCounter("rls_local_evictions_total", "Counters that were evicted from memory before they expired. If this grows, LOCAL_MAX_KEYS is too small.", float64(evictions()))
	})
}

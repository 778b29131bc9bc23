package metrics

import "github.com/prometheus/client_golang/prometheus"

// Local registers the metrics of the counters in this process. Each scrape reads them.
func (m *Metrics) Local(keys func() int, evictions, bytes func() int64) {
	m.auto.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "rls_local_keys", Help: "Counters in the memory of this process.",
	}, func() float64 { return float64(keys()) })
	m.auto.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "rls_local_memory_bytes", Help: "Memory of the counters in this process.",
	}, func() float64 { return float64(bytes()) })
	m.auto.NewCounterFunc(prometheus.CounterOpts{
		Name: "rls_local_evictions_total", Help: "Counters that were evicted from memory before they expired. If this grows, LOCAL_MAX_KEYS is too small.",
	}, func() float64 { return float64(evictions()) })
}

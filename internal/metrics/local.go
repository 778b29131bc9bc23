package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// LocalCounters are the counters in the memory of this process.
type LocalCounters interface {
	Keys() int
	Evictions() int64
}

// Local registers the metrics of the counters in this process. They are read when
// Prometheus asks for them.
func (m *Metrics) Local(counters LocalCounters) {
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "rls_local_keys", Help: "Counters in the memory of this process.",
		}, func() float64 { return float64(counters.Keys()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "rls_local_evictions_total", Help: "Counters that were evicted from memory before they expired. If this grows, LOCAL_MAX_KEYS is too small.",
		}, func() float64 { return float64(counters.Evictions()) }),
	)
}

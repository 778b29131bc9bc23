package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/backend/lease"
)

// leaseCollector reads the metrics of leases from their Stats.
type leaseCollector struct {
	stats func() lease.Stats
	rows  []leaseMetric
}

type leaseMetric struct {
	desc      *prometheus.Desc
	valueType prometheus.ValueType
	value     func(*lease.Stats) int64
}

// Leases registers the metrics of package lease.
func (m *Metrics) Leases(stats func() lease.Stats) {
	c := &leaseCollector{stats: stats}
	add := func(name, help string, valueType prometheus.ValueType, value func(*lease.Stats) int64) {
		c.rows = append(c.rows, leaseMetric{prometheus.NewDesc(name, help, nil, nil), valueType, value})
	}
	add("rls_lease_counters", "Counters for which this replica can hold permits.", prometheus.GaugeValue, func(s *lease.Stats) int64 { return s.Leases })
	add("rls_lease_permits_held", "Permits that this replica holds: charged in Redis and not used yet.", prometheus.GaugeValue, func(s *lease.Stats) int64 { return s.Held })
	add("rls_lease_permits_taken_total", "Permits taken from Redis.", prometheus.CounterValue, func(s *lease.Stats) int64 { return s.Taken })
	add("rls_lease_permits_used_total", "Permits that admitted a hit.", prometheus.CounterValue, func(s *lease.Stats) int64 { return s.Used })
	add("rls_lease_permits_returned_total", "Permits returned to Redis.", prometheus.CounterValue, func(s *lease.Stats) int64 { return s.Returned })
	add("rls_lease_permits_lapsed_total", "Permits that expired unused, or that a failed trip to Redis has lost.", prometheus.CounterValue, func(s *lease.Stats) int64 { return s.Lapsed })
	add("rls_lease_trips_saved_total", "Calls that needed no trip to Redis, because permits admitted all their hits.", prometheus.CounterValue, func(s *lease.Stats) int64 { return s.SavedTrips })
	m.registry.MustRegister(c)
}

// Describe implements prometheus.Collector.
func (c *leaseCollector) Describe(descs chan<- *prometheus.Desc) {
	for _, r := range c.rows {
		descs <- r.desc
	}
}

// Collect implements prometheus.Collector.
func (c *leaseCollector) Collect(metrics chan<- prometheus.Metric) {
	stats := c.stats()
	for _, r := range c.rows {
		metrics <- prometheus.MustNewConstMetric(r.desc, r.valueType, float64(r.value(&stats)))
	}
}

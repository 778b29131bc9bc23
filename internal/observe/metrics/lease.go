package metrics

import "github.com/seed-81f232ab/rls/backend/lease"

// Leases registers the metrics of package lease. Each scrape reads stats.
func (m *Metrics) Leases(stats func() lease.Stats) {
	m.registerReader(func(s scrape) {
		currentStats := stats()
		s.sendGauge("rls_lease_counters", "Counters for which this replica can hold permits.", float64(currentStats.Leases))
		s.sendGauge("rls_lease_permits_held", "Permits that this replica holds: charged in Redis and not used yet.", float64(currentStats.HeldPermits))
		s.sendCounter("rls_lease_permits_taken_total", "Permits taken from Redis.", float64(currentStats.TakenPermits))
		s.sendCounter("rls_lease_permits_used_total", "Permits that admitted a hit.", float64(currentStats.UsedPermits))
		s.sendCounter("rls_lease_permits_returned_total", "Permits returned to Redis.", float64(currentStats.ReturnedPermits))
		s.sendCounter("rls_lease_permits_lapsed_total", "Permits that expired unused, or that a failed trip to Redis has lost.", float64(currentStats.LapsedPermits))
		s.sendCounter("rls_lease_trips_saved_total", "Calls that needed no trip to Redis, because permits admitted all their hits.", float64(currentStats.SavedTrips))
	})
}

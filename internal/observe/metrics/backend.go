package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/denycache"
	"github.com/seed-81f232ab/rls/backend/lease"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/backend/region"
)

type denyCache struct{ denials prometheus.Counter }

// DenyCache registers the metrics of package denycache and returns its Observer.
func (m *Metrics) DenyCache() denycache.Observer {
	return denyCache{m.newCounter("rls_deny_cache_denials_total", "Hits denied by the deny cache, which saves the call of Redis.")}
}

func (d denyCache) HitDenied(*backend.Hit) { d.denials.Inc() }

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

// Regions registers the metrics of package region. Each scrape calls stats and findings.
func (m *Metrics) Regions(stats func() region.Stats, findings func() []redis.Finding) {
	m.registerReader(func(s scrape) {
		currentStats, currentFindings := stats(), findings()
		oneIfFound := func(check string) float64 {
			return oneIf(slices.ContainsFunc(currentFindings, func(f redis.Finding) bool { return f.Check == check }))
		}
		s.sendCounter("rls_region_trips_total", "Trips to the global Redis that bought hits.", float64(currentStats.Trips))
		s.sendCounter("rls_region_bought_hits_total", "Hits that this replica has bought for its region.", float64(currentStats.BoughtHits))
		s.sendGauge("rls_region_round_trip_seconds", "Time of the last purchase in the global Redis.", currentStats.RoundTrip.Seconds())
		s.sendGauge("rls_region_unused_hits", "Hits that the region has bought and not used, of the counters that this replica knows.", float64(currentStats.UnusedHits))
		s.sendGauge("rls_region_cut_off", "1 while the global Redis does not answer, so that this region buys no hits.", oneIfFound(redis.CheckConnection))
		s.sendGauge("rls_region_settings_differ", "1 while another region has other values of REGIONS, REGION_FLOOR or REGION_WASTE.", oneIfFound(redis.CheckRegions))
	})
}

// Local registers the metrics of the counters in this process. Each scrape calls keys, evictions and bytes.
func (m *Metrics) Local(keys func() int, evictions, bytes func() int64) {
	m.registerReader(func(s scrape) {
		s.sendGauge("rls_local_keys", "Counters in the memory of this process.", float64(keys()))
		s.sendGauge("rls_local_memory_bytes", "Memory of the counters in this process.", float64(bytes()))
		s.sendCounter("rls_local_evictions_total", "Counters that were evicted from memory before they expired. If this grows, LOCAL_MAX_KEYS is too small.", float64(evictions()))
	})
}

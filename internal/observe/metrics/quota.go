package metrics

import "github.com/seed-81f232ab/rls/service/quota"

// Quotas registers the metrics of package service/quota. Each scrape reads stats.
func (m *Metrics) Quotas(stats func() quota.Stats) {
	m.registerReader(func(s scrape) {
		currentStats := stats()
		s.sendGauge("rls_quota_streams", "Streams of Envoys that share limits.", float64(currentStats.Streams))
		s.sendGauge("rls_quota_buckets", "Buckets of all streams of Envoys.", float64(currentStats.Buckets))
		s.sendGauge("rls_quota_fallbacks", "Limits that this replica divides alone, because Redis is down.", float64(currentStats.Fallbacks))
		s.sendCounter("rls_quota_updates_total", "Updates of shares that were stored.", float64(currentStats.Updates))
		s.sendCounter("rls_quota_update_failures_total", "Updates of shares that Redis did not store in time.", float64(currentStats.Failures))
		s.sendCounter("rls_quota_update_conflicts_total", "Updates of shares that started again, because another replica was faster.", float64(currentStats.Conflicts))
		s.sendCounter("rls_quota_update_seconds_total", "Time from a report to its answer, added up over all updates.", currentStats.AnswerTime.Seconds())
		s.sendCounter("rls_quota_reports_ignored_total", "Reports of buckets that are not valid or beyond a bound.", float64(currentStats.IgnoredReports))
		s.sendCounter("rls_quota_streams_blocked_total", "Streams that rls closed, because the client did not read or used too much memory.", float64(currentStats.BlockedStreams))
		for _, r := range currentStats.Rules {
			s.sendGauge("rls_quota_granted", "Requests a second that Envoys of this replica may admit.", r.GrantedRate, "rule", r.Path)
			s.sendGauge("rls_quota_demanded", "Requests a second that Envoys of this replica ask for.", r.DemandedRate, "rule", r.Path)
		}
	})
}

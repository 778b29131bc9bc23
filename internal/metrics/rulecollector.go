package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ruleCollector exports the counts of rules under the names of envoyproxy/ratelimit.
type ruleCollector struct {
	rules   *rules
	metrics []ruleMetric
}

// ruleMetric is one metric of all rules.
type ruleMetric struct {
	desc  *prometheus.Desc
	value func(*HitSums) uint64
}

func newRuleCollector(r *rules) *ruleCollector {
	c := &ruleCollector{rules: r}
	add := func(name, help string, value func(*HitSums) uint64) {
		desc := prometheus.NewDesc("ratelimit_service_rate_limit_"+name, help, []string{"domain", "key1", "key2", "rule"}, nil)
		c.metrics = append(c.metrics, ruleMetric{desc, value})
	}
	add("total_hits", "Hits on the rule.", func(s *HitSums) uint64 { return s.Total })
	add("within_limit", "Hits that passed.", func(s *HitSums) uint64 { return s.WithinLimit })
	add("near_limit", "Hits between NEAR_LIMIT_RATIO × the limit and the limit.", func(s *HitSums) uint64 { return s.NearLimit })
	add("over_limit", "Hits beyond the limit, also in shadow mode.", func(s *HitSums) uint64 { return s.OverLimit })
	add("over_limit_with_local_cache", "Hits beyond the limit that the deny cache or the guard denied without Redis.", func(s *HitSums) uint64 { return s.OverLocal })
	add("shadow_mode", "Hits beyond the limit that passed because the rule is in shadow mode.", func(s *HitSums) uint64 { return s.Shadow })
	return c
}

// Describe implements prometheus.Collector.
func (c *ruleCollector) Describe(descs chan<- *prometheus.Desc) {
	for _, m := range c.metrics {
		descs <- m.desc
	}
}

// Collect implements prometheus.Collector. Series with the same labels are added, because
// Prometheus would reject the whole scrape if a series came twice.
func (c *ruleCollector) Collect(metrics chan<- prometheus.Metric) {
	sums := map[ruleLabels]*HitSums{}
	for _, l := range c.rules.limits.all(time.Now()) {
		l.eachSeries(func(s *series) {
			labels := s.labels()
			sum := sums[labels]
			if sum == nil {
				sum = &HitSums{}
				sums[labels] = sum
			}
			sum.add(&s.hitCounts)
		})
	}
	for labels, sum := range sums {
		for _, m := range c.metrics {
			metrics <- prometheus.MustNewConstMetric(m.desc, prometheus.CounterValue, float64(m.value(sum)), labels.domain, labels.key1, labels.key2, labels.rule)
		}
	}
}

package metrics

import "github.com/prometheus/client_golang/prometheus"

// domainCounter counts descriptors by the domain of their request.
type domainCounter struct {
	counters *prometheus.CounterVec
	domains  boundedMap[prometheus.Counter]
}

// newDomainCounter registers a counter. The first maxDomains domains have a series. Further domains count as "other".
func (m *Metrics) newDomainCounter(name, help string, maxDomains int) *domainCounter {
	return &domainCounter{
		counters: m.newCounters(name, help, "domain"),
		domains:  boundedMap[prometheus.Counter]{maxTexts: maxDomains},
	}
}

func (d *domainCounter) count(domain string, descriptors int) {
	var counter *prometheus.Counter
	if len(domain) <= maxMetricKey {
		counter = d.domains.findOrCreate([]byte(domain), func() *prometheus.Counter { return new(d.counters.WithLabelValues(validText(domain))) })
	}
	if counter == nil {
		counter = new(d.counters.WithLabelValues(otherValue))
	}
	(*counter).Add(float64(descriptors))
}

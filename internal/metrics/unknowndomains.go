package metrics

import "github.com/prometheus/client_golang/prometheus"

// unknownDomains counts the descriptors of requests whose domain has no limits.
type unknownDomains struct {
	vec     *prometheus.CounterVec
	domains boundedMap[prometheus.Counter]
}

func (m *Metrics) newUnknownDomains(maxDomains int) *unknownDomains {
	return &unknownDomains{
		vec: m.auto.NewCounterVec(prometheus.CounterOpts{
			Name: "ratelimit_service_rate_limit_domain_not_found", Help: "Descriptors of requests whose domain has no limits.",
		}, []string{"domain"}),
		domains: boundedMap[prometheus.Counter]{maxTexts: maxDomains},
	}
}

// count counts the descriptors of a request for domain.
func (u *unknownDomains) count(domain string, descriptors int) {
	var counter *prometheus.Counter
	if len(domain) <= maxMetricKey {
		counter = u.domains.find([]byte(domain), func() *prometheus.Counter { return u.counterOf(domain) })
	}
	if counter == nil {
		counter = u.counterOf(otherValue)
	}
	(*counter).Add(float64(descriptors))
}

func (u *unknownDomains) counterOf(domain string) *prometheus.Counter {
	counter := u.vec.WithLabelValues(validText(domain))
	return &counter
}

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/denycache"
)

// DenyCache counts the work of the deny cache.
type DenyCache struct {
	denials, evictions prometheus.Counter
}

var _ denycache.Observer = (*DenyCache)(nil)

// DenyCache registers the metrics of package denycache and returns its Observer.
func (m *Metrics) DenyCache() *DenyCache {
	d := &DenyCache{
		denials:   newCounter("rls_deny_cache_denials_total", "Hits denied by the deny cache, which saves the call of Redis."),
		evictions: newCounter("rls_deny_cache_evictions_total", "Denials that the deny cache evicted before their end. If this grows, the cache is too small."),
	}
	m.registry.MustRegister(d.denials, d.evictions)
	return d
}

// Denied implements denycache.Observer.
func (d *DenyCache) Denied(*backend.Hit) { d.denials.Inc() }

// Evicted implements denycache.Observer.
func (d *DenyCache) Evicted() { d.evictions.Inc() }

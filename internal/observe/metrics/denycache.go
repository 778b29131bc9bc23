package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/denycache"
)

type denyCache struct{ denials prometheus.Counter }

// DenyCache registers the metrics of package denycache and returns its Observer.
func (m *Metrics) DenyCache() denycache.Observer {
	return denyCache{m.newCounter("rls_deny_cache_denials_total", "Hits denied by the deny cache, which saves the call of Redis.")}
}

func (d denyCache) HitDenied(*backend.Hit) { d.denials.Inc() }

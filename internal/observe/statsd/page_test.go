package statsd

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/internal/observe/metrics"
)

func TestPageHasTotalsSinceTheStart(t *testing.T) {
	process := newProcess()
	process.rules = []metrics.KeyCounts{ // the second rule is the rule of an override for one value of k
		{Key: "d.k", ID: "d > k", HitSums: metrics.HitSums{Total: 3, WithinLimit: 3}},
		{Key: "d.k", ID: "d > k=v", HitSums: metrics.HitSums{Total: 2, WithinLimit: 2}},
	}
	process.counter("ratelimit_service_config_load_success").Add(2)
	decisions := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rls_decisions_total"}, []string{"result", "source"})
	process.registry.MustRegister(decisions)
	decisions.WithLabelValues("over_limit", "deny_cache").Add(3)
	decisions.WithLabelValues("over_limit", "redis").Add(4)
	decisions.WithLabelValues("ok", "redis").Add(5)
	lines := []string{
		"ratelimit.service.rate_limit.d.k.total_hits.__dc=eu: 5",
		"ratelimit.service.rate_limit.d.k.within_limit.__dc=eu: 5",
		"ratelimit.service.config_load_success.__dc=eu: 2",
		"rls_decisions_total.ok.redis.__dc=eu: 5",
		"rls_decisions_total.over_limit.deny_cache.__dc=eu: 3",
		"rls_decisions_total.over_limit.redis.__dc=eu: 4",
	}
	page := Handler(process.registry, process.allRules, map[string]string{"dc": "eu"})
	for range 2 { // the page does not show the growth since the last request
		assert.ElementsMatch(t, lines, linesOf(page))
	}
	process.counter("rls_deny_cache_denials_total")
	assert.ElementsMatch(t, append(lines,
		"ratelimit.localcache.hitCount.__dc=eu: 3",
		"ratelimit.localcache.missCount.__dc=eu: 9",
	), linesOf(page), "with a deny cache")
}

func linesOf(page http.Handler) []string {
	w := httptest.NewRecorder()
	page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/stats", nil))
	var lines []string
	for line := range strings.Lines(w.Body.String()) {
		lines = append(lines, strings.TrimSuffix(line, "\n"))
	}
	return lines
}

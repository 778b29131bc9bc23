package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/reload"
)

// reloads counts changes of the limits and describes their state.
type reloads struct {
	loadedSets, rejectedSets prometheus.Counter
	problems, domains        prometheus.Gauge
	overrides, sourceUp      *prometheus.GaugeVec
}

// Reload registers the metrics of package reload and returns its Observer. sources are
// the names of the sources in use, which are down at first.
func (m *Metrics) Reload(sources ...string) reload.Observer {
	r := &reloads{
		loadedSets:   m.newCounter("ratelimit_service_config_load_success", "Sets of limits that came into force."),
		rejectedSets: m.newCounter("ratelimit_service_config_load_error", "Sets of limits that were rejected."),
		problems:     m.newGauge("rls_config_problems", "Problems that keep the newest limits or overrides out of force. /rlconfig/problems lists them."),
		domains:      m.newGauge("rls_config_domains", "Domains of the limits in force."),
		overrides: m.auto.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rls_overrides", Help: "Overrides in force, and rejected overrides. An override is both if its previous value stays in force.",
		}, []string{"state"}),
		sourceUp: m.auto.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rls_source_up", Help: "1 if the source of limits or overrides can be read, else 0.",
		}, []string{"source"}),
	}
	r.Overrides(0, 0)
	for _, source := range sources {
		r.sourceUp.WithLabelValues(source)
	}
	return r
}

func (r *reloads) LimitsLoaded(domains int) {
	r.loadedSets.Inc()
	r.domains.Set(float64(domains))
}

func (r *reloads) LimitsChanged(reload.LimitsChange) {}

func (r *reloads) LimitsRejected(error) { r.rejectedSets.Inc() }

func (r *reloads) OverridesChanged([]reload.OverrideChange) {}

func (r *reloads) ConfigProblems(count int) { r.problems.Set(float64(count)) }

func (r *reloads) Overrides(inForce, rejected int) {
	r.overrides.WithLabelValues("in_force").Set(float64(inForce))
	r.overrides.WithLabelValues("rejected").Set(float64(rejected))
}

func (r *reloads) SourceState(source string, err error) {
	up := 1.0
	if err != nil {
		up = 0
	}
	r.sourceUp.WithLabelValues(source).Set(up)
}

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/reload"
)

// Reload counts changes of the limits and describes their state.
type Reload struct {
	loaded, rejected             prometheus.Counter
	problems, domains            prometheus.Gauge
	overrides, rejectedOverrides prometheus.Gauge
	sourceUp                     *prometheus.GaugeVec
}

var _ reload.Observer = (*Reload)(nil)

// Reload registers the metrics of package reload and returns its Observer. sources are
// the names of the sources in use, which are down at first.
func (m *Metrics) Reload(sources ...string) *Reload {
	overrides := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "rls_overrides", Help: "Overrides in force, and rejected overrides. An override is both if its previous value stays in force.",
	}, []string{"state"})
	r := &Reload{
		loaded:            newCounter("ratelimit_service_config_load_success", "Sets of limits that came into force."),
		rejected:          newCounter("ratelimit_service_config_load_error", "Sets of limits that were rejected."),
		problems:          newGauge("rls_config_problems", "Problems that keep the newest limits or overrides out of force. /rlconfig/problems lists them."),
		domains:           newGauge("rls_config_domains", "Domains of the limits in force."),
		overrides:         overrides.WithLabelValues("in_force"),
		rejectedOverrides: overrides.WithLabelValues("rejected"),
		sourceUp: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rls_source_up", Help: "1 if the source of limits or overrides can be read, else 0.",
		}, []string{"source"}),
	}
	for _, source := range sources {
		r.sourceUp.WithLabelValues(source)
	}
	m.registry.MustRegister(r.loaded, r.rejected, r.problems, r.domains, overrides, r.sourceUp)
	return r
}

// LimitsLoaded implements reload.Observer.
func (r *Reload) LimitsLoaded(domains int) {
	r.loaded.Inc()
	r.domains.Set(float64(domains))
}

// LimitsRejected implements reload.Observer.
func (r *Reload) LimitsRejected() { r.rejected.Inc() }

// ConfigProblems implements reload.Observer.
func (r *Reload) ConfigProblems(count int) { r.problems.Set(float64(count)) }

// Overrides implements reload.Observer.
func (r *Reload) Overrides(inForce, rejected int) {
	r.overrides.Set(float64(inForce))
	r.rejectedOverrides.Set(float64(rejected))
}

// SourceState implements reload.Observer.
func (r *Reload) SourceState(source string, err error) {
	up := 1.0
	if err != nil {
		up = 0
	}
	r.sourceUp.WithLabelValues(source).Set(up)
}

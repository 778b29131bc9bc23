package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// reload holds the metrics of the limits and where they come from.
type reload struct {
	limitsLoaded, limitsRefused prometheus.Counter
	problems, overrides         *prometheus.GaugeVec
	xdsUp                       prometheus.Gauge
}

func newReload() reload {
	r := reload{
		limitsLoaded:  newCounter("ratelimit_service_config_load_success", "Sets of limits put in force."),
		limitsRefused: newCounter("ratelimit_service_config_load_error", "Sets of limits refused."),
		problems: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rls_limits_problem", Help: "1 for each of the first problems that keep newer limits or overrides from being in force.",
		}, []string{"problem"}),
		overrides: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rls_overrides", Help: "Overrides of limits that are in force, and that are refused.",
		}, []string{"state"}),
		xdsUp: newGauge("rls_xds_up", "1 while the xDS server says what the limits are, 0 while it can't be reached or is silent."),
	}
	r.Overrides(0, 0)
	return r
}

func (r *reload) register(registry *prometheus.Registry) {
	registry.MustRegister(r.limitsLoaded, r.limitsRefused, r.problems, r.overrides)
}

// WithXDS adds the metric of an xDS server, which is not up yet.
func (m *Metrics) WithXDS() { m.registry.MustRegister(m.xdsUp) }

// LimitsLoaded counts a set of limits put in force.
func (r *reload) LimitsLoaded() { r.limitsLoaded.Inc() }

// LimitsRefused counts a set of limits refused.
func (r *reload) LimitsRefused() { r.limitsRefused.Inc() }

// LimitsProblems tells all that keeps newer limits or overrides from being in force
// now, in words with their place.
func (r *reload) LimitsProblems(problems []string) {
	r.problems.Reset()
	for _, p := range problems {
		r.problems.WithLabelValues(strings.ToValidUTF8(p, "?")).Set(1)
	}
}

// Overrides tells how many overrides are in force and how many are refused. One whose
// value before stays in force is both.
func (r *reload) Overrides(inForce, refused int) {
	r.overrides.WithLabelValues("in_force").Set(float64(inForce))
	r.overrides.WithLabelValues("refused").Set(float64(refused))
}

// XDS tells whether the xDS server says what the limits are.
func (r *reload) XDS(up bool) {
	r.xdsUp.Set(0)
	if up {
		r.xdsUp.Set(1)
	}
}

package metrics

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/service"
)

// decisions counts decisions by source.
type decisions struct {
	ok, overLimit, shadowed [len(backend.Sources)]prometheus.Counter
}

// Service registers the metrics of package service and returns its Observer.
func (m *Metrics) Service() service.Observer {
	vec := m.auto.NewCounterVec(prometheus.CounterOpts{
		Name: "rls_decisions_total",
		Help: "Decisions by result and source. One request makes a decision for each limit that it matches. Denials by limits in shadow mode have the result shadowed.",
	}, []string{"result", "source"})
	d := &decisions{}
	for _, source := range backend.Sources {
		d.ok[source] = vec.WithLabelValues("ok", source.String())
		d.overLimit[source] = vec.WithLabelValues("over_limit", source.String())
		d.shadowed[source] = vec.WithLabelValues("shadowed", source.String())
	}
	return d
}

// Answered implements service.Observer.
func (d *decisions) Answered(_ context.Context, c *service.Call) {
	for i := range c.Decisions() {
		decision := c.Decision(i)
		switch r := &decision.Result; {
		case r.Err != nil:
		case r.Allowed:
			d.ok[r.Source].Inc()
		case decision.Rule.ShadowMode:
			d.shadowed[r.Source].Inc()
		default:
			d.overLimit[r.Source].Inc()
		}
	}
}

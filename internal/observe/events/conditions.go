package events

import (
	"log/slog"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// conditionObserver reports conditions that are not tested. It writes at most one line of each kind a minute.
type conditionObserver struct {
	descriptors.Observer // the metrics
	log                  *slog.Logger
	failed, notTested    minuteLog
}

// Conditions returns the observer of conditions.
func (e *Events) Conditions() descriptors.Observer {
	return &conditionObserver{Observer: e.Metrics.Conditions(), log: e.Log}
}

// ExpressionFailed implements descriptors.Observer.
func (o *conditionObserver) ExpressionFailed(domain string, d *limitsfile.Descriptor, err error) {
	o.Observer.ExpressionFailed(domain, d, err)
	if failures, isDue := o.failed.add(); isDue {
		o.log.Warn("expression not evaluated", "domain", domain, "descriptor", d.Label(), "place", fields.FileLine(d.File, d.Line),
			"error", err, "failures", failures, "advice", "the descriptor did not match; rls explain shows the failure of a request")
	}
}

// ConditionNotTested implements descriptors.Observer.
func (o *conditionObserver) ConditionNotTested(domain string, d *limitsfile.Descriptor) {
	o.Observer.ConditionNotTested(domain, d)
	if count, isDue := o.notTested.add(); isDue {
		o.log.Warn("condition not tested", "domain", domain, "descriptor", d.Label(), "place", fields.FileLine(d.File, d.Line), "count", count,
			"advice", "the values are too long for the conditions, so requests are denied; let Envoy send shorter values, or make the conditions simpler")
	}
}

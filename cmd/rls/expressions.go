package main

import (
	"log/slog"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// expressionObserver reports expressions of conditions that fail to the metrics and the log. It
// writes at most one line a minute.
type expressionObserver struct {
	descriptors.Observer // the metrics
	log                  *slog.Logger
	lines                minuteLog
}

// ExpressionFailed implements descriptors.Observer.
func (o *expressionObserver) ExpressionFailed(domain string, d *limitsfile.Descriptor, err error) {
	o.Observer.ExpressionFailed(domain, d, err)
	if failures, isDue := o.lines.add(); isDue {
		o.log.Warn("expression not evaluated", "domain", domain, "descriptor", d.Label(), "place", limitsfile.FileLine(d.File, d.Line),
			"error", err, "failures", failures, "advice", "the descriptor did not match; rls explain shows the failure of a request")
	}
}

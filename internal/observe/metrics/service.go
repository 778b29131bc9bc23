package metrics

import (
	"context"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/service"
)

// callObserver is a service.Observer that counts calls, errors and decisions.
type callObserver struct {
	okDecisions, deniedDecisions, shadowedDecisions []prometheus.Counter // the index is the backend.Source

	redisErrors, serviceErrors prometheus.Counter
	refusedCalls               prometheus.Counter
	okCalls, deniedCalls       prometheus.Counter
	globalShadows              prometheus.Counter

	metrics *Metrics // has the fallbackDecisions, which Fallback can set later
}

// Service registers the metrics of package service and returns its Observer.
func (m *Metrics) Service() service.Observer {
	decisions := m.newCounters("rls_decisions_total",
		"Decisions by result and source. One request makes a decision for each limit that it matches. Denials by limits in shadow mode have the result shadowed.",
		"result", "source")
	errors := m.newCounters("ratelimit_service_should_rate_limit_error",
		"Failed calls. service_error is an invalid request, or a call before limits are loaded; given_up is a gRPC call that its caller cancelled, or whose deadline passed, before the caller got the answer; caller_limited is a call of a caller that sent too many (MAX_CALLER_CALLS_PER_SECOND); redis_error is any other failure.", "err_type")
	m.givenUpCalls = errors.WithLabelValues("given_up")
	callsByCode := m.newCounters("rls_calls_total", "Answered calls by their code: ok or over_limit. A call over a limit in shadow mode is ok.", "code")
	d := &callObserver{
		okCalls:       callsByCode.WithLabelValues("ok"),
		deniedCalls:   callsByCode.WithLabelValues("over_limit"),
		metrics:       m,
		serviceErrors: errors.WithLabelValues("service_error"),
		refusedCalls:  errors.WithLabelValues("caller_limited"),
		redisErrors:   errors.WithLabelValues("redis_error"),
		globalShadows: m.newCounter("ratelimit_service_global_shadow_mode", "Calls over a limit that passed because of SHADOW_MODE."),
	}
	for _, source := range backend.Sources() {
		d.okDecisions = append(d.okDecisions, decisions.WithLabelValues("ok", source.String()))
		d.deniedDecisions = append(d.deniedDecisions, decisions.WithLabelValues("over_limit", source.String()))
		d.shadowedDecisions = append(d.shadowedDecisions, decisions.WithLabelValues("shadowed", source.String()))
	}
	return d
}

// CallGivenUp counts a gRPC call whose caller gave up before the caller got the answer, even if rls has answered.
func (m *Metrics) CallGivenUp() {
	if m.givenUpCalls != nil { // nil if the process does not observe calls
		m.givenUpCalls.Inc()
	}
}

func (d *callObserver) Answered(_ context.Context, c *service.Call) {
	switch status.Code(c.Err) {
	case codes.OK:
		if c.Response.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
			d.deniedCalls.Inc()
		} else {
			d.okCalls.Inc()
		}
	case codes.Canceled, codes.DeadlineExceeded: // CallGivenUp counts the call
	case codes.ResourceExhausted:
		d.refusedCalls.Inc()
	case codes.InvalidArgument, codes.FailedPrecondition:
		d.serviceErrors.Inc()
	default:
		d.redisErrors.Inc()
	}
	if c.GlobalShadow {
		d.globalShadows.Inc()
	}
	for i := range c.DecisionCount() {
		decision := c.Decision(i)
		r := &decision.Result
		switch {
		case r.Err != nil:
			continue
		case r.Allowed:
			d.okDecisions[r.Source].Inc()
		case decision.Shadow:
			d.shadowedDecisions[r.Source].Inc()
		default:
			d.deniedDecisions[r.Source].Inc()
		}
		if r.IsDegraded() && d.metrics.fallbackDecisions != nil {
			d.metrics.fallbackDecisions.count(r, decision.Shadow)
		}
	}
}

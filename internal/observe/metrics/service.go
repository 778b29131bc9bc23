package metrics

import (
	"context"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/service"
	"github.com/seed-81f232ab/rls/service/quota"
)

type callObserver struct {
	okDecisions, deniedDecisions, shadowDecisions []prometheus.Counter // the index is the backend.Source

	redisErrors, serviceErrors prometheus.Counter
	refusedCalls               prometheus.Counter
	okCalls, deniedCalls       prometheus.Counter
	globalShadowCalls          prometheus.Counter

	metrics *Metrics // has the fallbackDecisions, which Metrics.Fallback can set after the call of Service
}

// Service registers the metrics of package service and returns its Observer.
func (m *Metrics) Service() service.Observer {
	decisions := m.newCounters("rls_decisions_total",
		"Decisions by result and source. One request makes a decision for each limit that it matches. Denials by limits in shadow mode have the result shadowed.",
		"result", "source")
	errors := m.newCounters("ratelimit_service_should_rate_limit_error",
		"Failed calls. service_error is an invalid request, or a call before limits are loaded; given_up is a gRPC call that its caller cancelled, or whose deadline passed, before the caller got the answer; caller_limited is a call of a caller that sent too many calls (MAX_CALLER_CALLS_PER_SECOND); redis_error is any other failure.", "err_type")
	m.givenUpCalls = errors.WithLabelValues("given_up")
	callsByCode := m.newCounters("rls_calls_total", "Answered calls by their code: ok or over_limit. A call over a limit in shadow mode is ok.", "code")
	observer := &callObserver{
		okCalls:           callsByCode.WithLabelValues("ok"),
		deniedCalls:       callsByCode.WithLabelValues("over_limit"),
		metrics:           m,
		serviceErrors:     errors.WithLabelValues("service_error"),
		refusedCalls:      errors.WithLabelValues("caller_limited"),
		redisErrors:       errors.WithLabelValues("redis_error"),
		globalShadowCalls: m.newCounter("ratelimit_service_global_shadow_mode", "Calls over a limit that passed because of SHADOW_MODE."),
	}
	for _, source := range backend.Sources() {
		observer.okDecisions = append(observer.okDecisions, decisions.WithLabelValues("ok", source.String()))
		observer.deniedDecisions = append(observer.deniedDecisions, decisions.WithLabelValues("over_limit", source.String()))
		observer.shadowDecisions = append(observer.shadowDecisions, decisions.WithLabelValues("shadowed", source.String()))
	}
	return observer
}

// CallGivenUp counts a gRPC call whose caller gave up before the caller got the answer, even if rls has answered.
func (m *Metrics) CallGivenUp() {
	if m.givenUpCalls != nil { // nil if the process does not observe calls
		m.givenUpCalls.Inc()
	}
}

func (o *callObserver) CallAnswered(_ context.Context, call *service.Call) {
	switch status.Code(call.Err) {
	case codes.OK:
		if call.Response.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
			o.deniedCalls.Inc()
		} else {
			o.okCalls.Inc()
		}
	case codes.Canceled, codes.DeadlineExceeded: // CallGivenUp counts the call
	case codes.ResourceExhausted:
		o.refusedCalls.Inc()
	case codes.InvalidArgument, codes.FailedPrecondition:
		o.serviceErrors.Inc()
	default:
		o.redisErrors.Inc()
	}
	if call.GlobalShadow {
		o.globalShadowCalls.Inc()
	}
	for i := range call.DecisionCount() {
		decision := call.Decision(i)
		result := &decision.Result
		switch {
		case result.Err != nil:
			continue
		case result.Allowed:
			o.okDecisions[result.Source].Inc()
		case decision.Shadow:
			o.shadowDecisions[result.Source].Inc()
		default:
			o.deniedDecisions[result.Source].Inc()
		}
		if result.IsDegraded() && o.metrics.fallbackDecisions != nil {
			o.metrics.fallbackDecisions.count(result, decision.Shadow)
		}
	}
}

// Callers registers the metrics of callers. countRefusal counts a refused call. setValid gets the error of the newest file
// of callers, or nil if this file is in force.
func (m *Metrics) Callers() (countRefusal func(), setValid func(error)) {
	refusedCalls := m.newCounter("rls_calls_forbidden_total", "Calls with a domain that the caller may not use (CALLER_DOMAINS_FILE).")
	validGauge := m.newGauge("rls_callers_file_valid", "1 if the newest CALLER_DOMAINS_FILE is in force, else 0.")
	validGauge.Set(1)
	return refusedCalls.Inc, func(err error) { validGauge.Set(oneIf(err == nil)) }
}

// RulesDenyingSinceChange registers the metric of rules that deny most hits since a change of their limits. Each scrape
// reads paths.
func (m *Metrics) RulesDenyingSinceChange(paths func() []string) {
	m.registerReader(func(s scrape) {
		for _, path := range paths() {
			s.sendGauge("rls_rule_denies_since_change", "1 for each rule that denies most hits since its limits changed, and admitted most hits before.", 1, "rule", validText(path))
		}
	})
}

// TokensFileValidity registers the metric of ADMIN_TOKENS_FILE.
func (m *Metrics) TokensFileValidity() (setValid func(error)) {
	validGauge := m.newGauge("rls_tokens_file_valid", "1 if the newest ADMIN_TOKENS_FILE is in force, else 0.")
	validGauge.Set(1)
	return func(err error) { validGauge.Set(oneIf(err == nil)) }
}

// Conditions registers the metrics of conditions. countFailure counts an expression of a domain that could not be
// evaluated. countUntested counts a condition of a domain that was not tested.
func (m *Metrics) Conditions() (countFailure, countUntested func(domain string)) {
	failures := m.newCounters("rls_expression_failures_total", "Expressions of conditions that could not be evaluated for a request, so that their descriptors did not match.", "domain")
	untestedConditions := m.newCounters("rls_conditions_not_tested_total", "Descriptors of requests whose conditions were not tested, because the call had spent its steps.", "domain")
	return func(domain string) { failures.WithLabelValues(validText(domain)).Inc() },
		func(domain string) { untestedConditions.WithLabelValues(validText(domain)).Inc() }
}

// Quotas registers the metrics of package service/quota. Each scrape reads stats.
func (m *Metrics) Quotas(stats func() quota.Stats) {
	m.registerReader(func(s scrape) {
		currentStats := stats()
		s.sendGauge("rls_quota_streams", "Streams of Envoys that share limits.", float64(currentStats.Streams))
		s.sendGauge("rls_quota_buckets", "Buckets of all streams of Envoys.", float64(currentStats.Buckets))
		s.sendGauge("rls_quota_fallbacks", "Limits that this replica divides alone, because Redis is down.", float64(currentStats.Fallbacks))
		s.sendCounter("rls_quota_updates_total", "Updates of shares that were stored.", float64(currentStats.Updates))
		s.sendCounter("rls_quota_update_failures_total", "Updates of shares that Redis did not store in time.", float64(currentStats.Failures))
		s.sendCounter("rls_quota_update_conflicts_total", "Updates of shares that started again, because another replica was faster.", float64(currentStats.Conflicts))
		s.sendCounter("rls_quota_update_seconds_total", "Time from a report to its answer, added up over all updates.", currentStats.AnswerTime.Seconds())
		s.sendCounter("rls_quota_reports_ignored_total", "Reports of buckets that are not valid or beyond a bound.", float64(currentStats.IgnoredReports))
		s.sendCounter("rls_quota_streams_blocked_total", "Streams that rls closed, because the client did not read or used too much memory.", float64(currentStats.BlockedStreams))
		for _, r := range currentStats.Rules {
			s.sendGauge("rls_quota_granted", "Requests a second that Envoys of this replica may admit.", r.GrantedRate, "rule", r.Path)
			s.sendGauge("rls_quota_demanded", "Requests a second that Envoys of this replica ask for.", r.DemandedRate, "rule", r.Path)
		}
	})
}

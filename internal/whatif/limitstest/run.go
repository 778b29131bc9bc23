package limitstest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
	"github.com/seed-81f232ab/rls/service"
)

// headers are the names of the response headers in tests: the default names of the service.
var headers = &service.Headers{Limit: "RateLimit-Limit", Remaining: "RateLimit-Remaining", Reset: "RateLimit-Reset"}

// Run runs all tests of f against config, and adds the rules that the tests meet to coverage.
func (f *File) Run(ctx context.Context, config *descriptors.Config, coverage *Coverage) FileReport {
	metRules := coverage.add(config)
	report := FileReport{File: f.Name, Limits: f.Limits}
	for i := range f.Tests {
		if ctx.Err() != nil {
			break
		}
		report.Tests = append(report.Tests, f.runTest(ctx, config, &f.Tests[i], metRules))
	}
	return report
}

func (f *File) runTest(ctx context.Context, config *descriptors.Config, test *Test, metRules ruleSet) TestReport {
	report := TestReport{Name: test.Name, Line: test.Line}
	start := time.Now()
	service := f.newTestService(config, metRules)
	for i := range test.Requests {
		failure, failedRepetition := service.send(ctx, &test.Requests[i])
		if failure == nil {
			continue
		}
		if len(report.Failures) == 0 {
			failure.Explanation = f.explain(ctx, config, test, i, failedRepetition)
		}
		report.Failures = append(report.Failures, *failure)
	}
	if n := service.limiter.Evictions(); n > 0 {
		report.Failures = append(report.Failures, Failure{Line: test.Line, Mismatches: []Mismatch{{
			Field: "counters", Got: fmt.Sprintf("%d forgotten, because memory has room for %d keys", n, local.DefaultMaxKeys), Want: "a smaller test",
		}}})
	}
	report.Seconds = time.Since(start).Seconds()
	return report
}

// explain explains the failed repetition of request i. It first sends all earlier requests of test to a new service.
func (f *File) explain(ctx context.Context, config *descriptors.Config, test *Test, i, repetition int) *explain.Report {
	newService := f.newTestService(config, nil)
	for j := range i {
		newService.sendRepeatedly(ctx, &test.Requests[j], test.Requests[j].Repetitions)
	}
	failedRequest := &test.Requests[i]
	newService.sendRepeatedly(ctx, failedRequest, repetition)
	settings := f.Settings
	return explain.New(explain.Options{
		Limits: &newService.limits, Layer: backend.Counters{Limiter: newService.limiter}, Now: func() time.Time { return failedRequest.sendTime(repetition) },
		ShadowMode: settings.ShadowMode, QuotaMode: settings.QuotaMode, AllOrNone: settings.AllOrNone,
	}).Explain(ctx, failedRequest.Message)
}

// testService is a service with empty counters and a virtual clock. It is also the Observer of the service.
type testService struct {
	service *service.Service
	limiter *local.Limiter
	limits  descriptors.Store
	now     time.Time

	metRules       ruleSet             // the rules that requests have met; nil if no coverage is needed
	rules          []*descriptors.Rule // the rules of the last call, one for each descriptor
	deniedInShadow []bool              // reports for each descriptor of the last call whether a rule in shadow mode denies it
	admittedCount  int                 // the number of answers OK to the last request
}

func (f *File) newTestService(config *descriptors.Config, metRules ruleSet) *testService {
	newService := &testService{limiter: local.New(local.Options{}), metRules: metRules}
	newService.limits.Set(config)
	options := f.Settings
	options.Limits, options.Limiter, options.Observers = &newService.limits, newService.limiter, []service.Observer{newService}
	options.Now, options.Headers, options.PolicyHeaders = func() time.Time { return newService.now }, headers, true
	newService.service = service.New(options)
	return newService
}

func (s *testService) CallAnswered(_ context.Context, call *service.Call) {
	s.rules = append(s.rules[:0], call.Rules...)
	s.deniedInShadow = append(s.deniedInShadow[:0], make([]bool, len(call.Rules))...)
	for i := range call.DecisionCount() {
		d := call.Decision(i)
		if d.Shadow && d.Result.Err == nil && !d.Result.Allowed {
			s.deniedInShadow[d.Descriptor] = true
		}
	}
	if s.metRules != nil {
		for _, rule := range call.Rules {
			s.metRules[rule] = true
		}
	}
}

func (s *testService) sendOnce(ctx context.Context, r *Request, i int) (*rlsv3.RateLimitResponse, error) {
	s.now = r.sendTime(i)
	return s.service.ShouldRateLimit(ctx, r.Message)
}

func (s *testService) sendRepeatedly(ctx context.Context, r *Request, times int) {
	for i := range times {
		_, _ = s.sendOnce(ctx, r, i)
	}
}

// send sends all repetitions of request. It returns the first failure and the index of its repetition. Without a failure, it
// returns nil.
func (s *testService) send(ctx context.Context, request *Request) (failure *Failure, failedRepetition int) {
	s.admittedCount = 0
	for i := range request.Repetitions {
		resp, err := s.sendOnce(ctx, request, i)
		if err == nil && resp.OverallCode == rlsv3.RateLimitResponse_OK {
			s.admittedCount++
		}
		if failure != nil {
			continue // later requests need the hits that this repetition charges
		}
		if mismatches := s.compare(request, resp, err, i == request.Repetitions-1); len(mismatches) > 0 {
			failedRepetition = i
			failure = &Failure{
				Line: request.Line, Domain: request.Message.Domain, Descriptors: request.Descriptors, Time: s.now, Repetition: i + 1, Repeat: request.Repetitions,
				Mismatches: mismatches,
			}
		}
	}
	return failure, failedRepetition
}

// compare returns the values of the answer that differ from the wanted values. isLast reports whether the answer is for the
// last repetition of request. For earlier repetitions, compare only looks at code, rule and denied_in_shadow.
func (s *testService) compare(request *Request, resp *rlsv3.RateLimitResponse, err error, isLast bool) (mismatches []Mismatch) {
	if err != nil || request.WantedError != "" {
		got, want := noValue, cmp.Or(request.WantedError, noValue)
		if err != nil {
			got = status.Convert(err).Message()
		}
		if err == nil || request.WantedError == "" || !strings.Contains(got, want) {
			return []Mismatch{{"error", got, want}}
		}
		return nil
	}
	for i := range request.Want {
		w := &request.Want[i]
		isWantedEachTime := w.Field == "code" || w.Field == "rule" || w.Field == "denied_in_shadow"
		if got := s.value(w, resp); (isLast || isWantedEachTime) && got != w.Text {
			mismatches = append(mismatches, Mismatch{w.Label, got, w.Text + s.advice(w)})
		}
	}
	return mismatches
}

func (s *testService) value(want *Want, resp *rlsv3.RateLimitResponse) string {
	i := max(want.Descriptor, 0)
	status, rule := resp.Statuses[i], s.rules[i]
	switch want.Field {
	case "code":
		if want.Descriptor == wholeAnswer {
			return resp.OverallCode.String()
		}
		return status.Code.String()
	case "admitted":
		return strconv.Itoa(s.admittedCount)
	case "body":
		return cmp.Or(string(resp.RawBody), noValue)
	case "headers":
		for _, h := range resp.ResponseHeadersToAdd {
			if strings.EqualFold(h.Key, want.Header) {
				return h.Value
			}
		}
		return noValue
	case "rule":
		if rule == nil {
			return noValue
		}
		return rule.Path
	case "denied_in_shadow":
		return strconv.FormatBool(s.deniedInShadow[i])
	case "limit":
		return limitText(rule, status, want.Text)
	case "remaining":
		return strconv.FormatUint(uint64(status.LimitRemaining), 10)
	}
	return status.DurationUntilReset.AsDuration().String() // reset
}

// limitText returns the limit that a status describes. If wantedText is the name or the text of the limit, limitText returns
// wantedText. Otherwise it returns the text and the name.
func limitText(rule *descriptors.Rule, status *rlsv3.RateLimitResponse_DescriptorStatus, wantedText string) string {
	if rule == nil {
		return noValue
	}
	for _, limit := range rule.Limits {
		if !limit.Unlimited && (status.CurrentLimit == nil || limit.Response != status.CurrentLimit) {
			continue
		}
		text := "unlimited"
		if !limit.Unlimited {
			text = limit.String()
		}
		switch wantedText {
		case limit.Name, text:
			return wantedText
		}
		if limit.Name != "" {
			text += fmt.Sprintf(" (named %s)", fields.Printable(limit.Name))
		}
		return text
	}
	return noValue
}

// advice returns a note if no limits file has the wanted rule, and otherwise an empty text.
func (s *testService) advice(w *Want) string {
	if w.Field != "rule" || w.Text == noValue {
		return ""
	}
	var paths []string
	s.limits.Load().EachRule(func(r *descriptors.Rule) { paths = append(paths, r.Path) })
	if slices.Contains(paths, w.Text) {
		return ""
	}
	if similar := fields.Nearest(w.Text, paths); similar != "" {
		return fmt.Sprintf(" (no rule has this path; did you mean %s?)", similar)
	}
	return " (no rule has this path; rls check prints all rules)"
}

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

func (f *File) runTest(ctx context.Context, config *descriptors.Config, t *Test, metRules ruleSet) TestReport {
	report := TestReport{Name: t.Name, Line: t.Line}
	start := time.Now()
	s := f.newTestService(config, metRules)
	for i := range t.Requests {
		failure, failedRepetition := s.send(ctx, &t.Requests[i])
		if failure == nil {
			continue
		}
		if len(report.Failures) == 0 {
			failure.Explanation = f.explain(ctx, config, t, i, failedRepetition)
		}
		report.Failures = append(report.Failures, *failure)
	}
	if n := s.limiter.Evictions(); n > 0 {
		report.Failures = append(report.Failures, Failure{Line: t.Line, Mismatches: []Mismatch{{
			Field: "counters", Got: fmt.Sprintf("%d forgotten, because memory has room for %d keys", n, local.DefaultMaxKeys), Want: "a smaller test",
		}}})
	}
	report.Seconds = time.Since(start).Seconds()
	return report
}

// explain explains repetition n of request i, which has failed. It first sends all earlier requests of t to a new service.
func (f *File) explain(ctx context.Context, config *descriptors.Config, t *Test, i, n int) *explain.Report {
	s := f.newTestService(config, nil)
	for j := range i {
		s.sendRepeatedly(ctx, &t.Requests[j], t.Requests[j].Repeat)
	}
	failedRequest := &t.Requests[i]
	s.sendRepeatedly(ctx, failedRequest, n)
	o := f.Settings
	return explain.New(explain.Options{
		Limits: &s.limits, Layer: backend.Counters{Limiter: s.limiter}, Now: func() time.Time { return failedRequest.sendTime(n) },
		ShadowMode: o.ShadowMode, QuotaMode: o.QuotaMode, AllOrNone: o.AllOrNone,
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
	admitted       int                 // the number of answers OK to the last request
}

func (f *File) newTestService(config *descriptors.Config, metRules ruleSet) *testService {
	s := &testService{limiter: local.New(local.Options{}), metRules: metRules}
	s.limits.Set(config)
	o := f.Settings
	o.Limits, o.Limiter, o.Observers = &s.limits, s.limiter, []service.Observer{s}
	o.Now, o.Headers, o.PolicyHeaders = func() time.Time { return s.now }, headers, true
	s.service = service.New(o)
	return s
}

func (s *testService) Answered(_ context.Context, c *service.Call) {
	s.rules = append(s.rules[:0], c.Rules...)
	s.deniedInShadow = append(s.deniedInShadow[:0], make([]bool, len(c.Rules))...)
	for i := range c.DecisionCount() {
		d := c.Decision(i)
		if d.Shadow && d.Result.Err == nil && !d.Result.Allowed {
			s.deniedInShadow[d.Descriptor] = true
		}
	}
	if s.metRules != nil {
		for _, rule := range c.Rules {
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

// send sends all repetitions of r. It returns the first failure and the repetition with this failure, from 0, or nil.
func (s *testService) send(ctx context.Context, r *Request) (failure *Failure, failedRepetition int) {
	s.admitted = 0
	for i := range r.Repeat {
		resp, err := s.sendOnce(ctx, r, i)
		if err == nil && resp.OverallCode == rlsv3.RateLimitResponse_OK {
			s.admitted++
		}
		if failure != nil {
			continue // later requests need the charges of this repetition
		}
		if mismatches := s.compare(r, resp, err, i == r.Repeat-1); len(mismatches) > 0 {
			failedRepetition = i
			failure = &Failure{
				Line: r.Line, Domain: r.Message.Domain, Descriptors: r.Descriptors, Time: s.now, Repetition: i + 1, Repeat: r.Repeat,
				Mismatches: mismatches,
			}
		}
	}
	return failure, failedRepetition
}

// compare returns the values of the answer that differ from the wanted values. isLast reports whether this is the last
// repetition of r. Only code, rule and denied_in_shadow are compared in earlier repetitions.
func (s *testService) compare(r *Request, resp *rlsv3.RateLimitResponse, err error, isLast bool) (mismatches []Mismatch) {
	if err != nil || r.WantedError != "" {
		got, want := none, cmp.Or(r.WantedError, none)
		if err != nil {
			got = status.Convert(err).Message()
		}
		if err == nil || r.WantedError == "" || !strings.Contains(got, want) {
			return []Mismatch{{"error", got, want}}
		}
		return nil
	}
	for i := range r.Want {
		w := &r.Want[i]
		isWantedEachTime := w.Field == "code" || w.Field == "rule" || w.Field == "denied_in_shadow"
		if got := s.value(w, resp); (isLast || isWantedEachTime) && got != w.Text {
			mismatches = append(mismatches, Mismatch{w.Label, got, w.Text + s.advice(w)})
		}
	}
	return mismatches
}

func (s *testService) value(w *Want, resp *rlsv3.RateLimitResponse) string {
	i := max(w.Descriptor, 0)
	status, rule := resp.Statuses[i], s.rules[i]
	switch w.Field {
	case "code":
		if w.Descriptor == wholeAnswer {
			return resp.OverallCode.String()
		}
		return status.Code.String()
	case "admitted":
		return strconv.Itoa(s.admitted)
	case "body":
		return cmp.Or(string(resp.RawBody), none)
	case "headers":
		for _, h := range resp.ResponseHeadersToAdd {
			if strings.EqualFold(h.Key, w.Header) {
				return h.Value
			}
		}
		return none
	case "rule":
		if rule == nil {
			return none
		}
		return rule.Path
	case "denied_in_shadow":
		return strconv.FormatBool(s.deniedInShadow[i])
	case "limit":
		return limitText(rule, status, w.Text)
	case "remaining":
		return strconv.FormatUint(uint64(status.LimitRemaining), 10)
	}
	return status.DurationUntilReset.AsDuration().String() // reset
}

// limitText returns the limit that a status describes. If wanted is the name or the text of this limit, it returns wanted,
// and otherwise the text and the name.
func limitText(rule *descriptors.Rule, status *rlsv3.RateLimitResponse_DescriptorStatus, wanted string) string {
	if rule == nil {
		return none
	}
	for _, l := range rule.Limits {
		if !l.Unlimited && (status.CurrentLimit == nil || l.Response != status.CurrentLimit) {
			continue
		}
		text := "unlimited"
		if !l.Unlimited {
			text = l.String()
		}
		switch wanted {
		case l.Name, text:
			return wanted
		}
		if l.Name != "" {
			text += fmt.Sprintf(" (named %s)", fields.Printable(l.Name))
		}
		return text
	}
	return none
}

// advice returns a note if no limits file has the wanted rule, and otherwise an empty text.
func (s *testService) advice(w *Want) string {
	if w.Field != "rule" || w.Text == none {
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

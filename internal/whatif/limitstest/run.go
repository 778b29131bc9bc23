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

// headers are the response headers of tests, with the names that the service has by default.
var headers = &service.Headers{Limit: "RateLimit-Limit", Remaining: "RateLimit-Remaining", Reset: "RateLimit-Reset"}

// Run runs all tests of f against config, and adds the rules that they meet to coverage.
func (f *File) Run(ctx context.Context, config *descriptors.Config, coverage *Coverage) FileReport {
	met := coverage.add(config)
	report := FileReport{File: f.Name, Limits: f.Limits}
	for i := range f.Tests {
		if ctx.Err() != nil {
			break
		}
		report.Tests = append(report.Tests, f.runTest(ctx, config, &f.Tests[i], met))
	}
	return report
}

func (f *File) runTest(ctx context.Context, config *descriptors.Config, t *Test, met ruleSet) TestReport {
	report := TestReport{Name: t.Name, Line: t.Line}
	began := time.Now()
	s := f.newTestService(config, met)
	for i := range t.Requests {
		failure, failedAt := s.send(ctx, &t.Requests[i])
		if failure == nil {
			continue
		}
		if len(report.Failures) == 0 {
			failure.Explanation = f.explain(ctx, config, t, i, failedAt)
		}
		report.Failures = append(report.Failures, *failure)
	}
	if n := s.limiter.Evictions(); n > 0 {
		report.Failures = append(report.Failures, Failure{Line: t.Line, Mismatches: []Mismatch{{
			Field: "counters", Got: fmt.Sprintf("%d forgotten, because memory has room for %d keys", n, local.DefaultMaxKeys), Want: "a smaller test",
		}}})
	}
	report.Seconds = time.Since(began).Seconds()
	return report
}

// explain explains repetition n of request i, which failed: it repeats the test up to it in a new service.
func (f *File) explain(ctx context.Context, config *descriptors.Config, t *Test, i, n int) *explain.Report {
	s := f.newTestService(config, nil)
	for j := range i {
		s.sendTimes(ctx, &t.Requests[j], t.Requests[j].Repeat)
	}
	failed := &t.Requests[i]
	s.sendTimes(ctx, failed, n)
	o := f.Settings
	return explain.New(explain.Options{
		Limits: &s.limits, Layer: backend.Counters{Limiter: s.limiter}, Now: func() time.Time { return failed.time(n) },
		ShadowMode: o.ShadowMode, QuotaMode: o.QuotaMode, AllOrNone: o.AllOrNone,
	}).Explain(ctx, failed.Message)
}

// testService is a service with empty counters and a virtual clock. It is also the Observer of the service.
type testService struct {
	service *service.Service
	limiter *local.Limiter
	limits  descriptors.Store
	now     time.Time

	met            ruleSet             // rules that requests have met; nil if nobody wants to know
	rules          []*descriptors.Rule // of the last call
	deniedInShadow []bool              // descriptors of the last call
	admitted       int                 // answers to the last request that are OK
}

func (f *File) newTestService(config *descriptors.Config, met ruleSet) *testService {
	s := &testService{limiter: local.New(local.Options{}), met: met}
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
	for i := range c.Decisions() {
		d := c.Decision(i)
		if d.Shadow && d.Result.Err == nil && !d.Result.Allowed {
			s.deniedInShadow[d.Descriptor] = true
		}
	}
	if s.met != nil {
		for _, rule := range c.Rules {
			s.met[rule] = true
		}
	}
}

func (s *testService) call(ctx context.Context, r *Request, i int) (*rlsv3.RateLimitResponse, error) {
	s.now = r.time(i)
	return s.service.ShouldRateLimit(ctx, r.Message)
}

func (s *testService) sendTimes(ctx context.Context, r *Request, times int) {
	for i := range times {
		_, _ = s.call(ctx, r, i)
	}
}

// send sends r as often as it repeats. It returns the first failure and its repetition, from 0, or nil.
func (s *testService) send(ctx context.Context, r *Request) (failure *Failure, failedAt int) {
	s.admitted = 0
	for i := range r.Repeat {
		resp, err := s.call(ctx, r, i)
		if err == nil && resp.OverallCode == rlsv3.RateLimitResponse_OK {
			s.admitted++
		}
		if failure != nil {
			continue // later requests need the charges of this one
		}
		if mismatches := s.compare(r, resp, err, i == r.Repeat-1); len(mismatches) > 0 {
			failedAt = i
			failure = &Failure{
				Line: r.Line, Domain: r.Message.Domain, Descriptors: r.Descriptors, Time: s.now, Repetition: i + 1, Repeat: r.Repeat,
				Mismatches: mismatches,
			}
		}
	}
	return failure, failedAt
}

// compare returns the wanted values that the answer does not have.
func (s *testService) compare(r *Request, resp *rlsv3.RateLimitResponse, err error, isLast bool) (all []Mismatch) {
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
		isOfEach := w.Field == "code" || w.Field == "rule" || w.Field == "denied_in_shadow" // and not only of the last answer
		if got := s.value(w, resp); (isLast || isOfEach) && got != w.Text {
			all = append(all, Mismatch{w.Label, got, w.Text + s.advice(w)})
		}
	}
	return all
}

func (s *testService) value(w *Want, resp *rlsv3.RateLimitResponse) string {
	i := max(w.Descriptor, 0)
	got, rule := resp.Statuses[i], s.rules[i]
	switch w.Field {
	case "code":
		if w.Descriptor == wholeAnswer {
			return resp.OverallCode.String()
		}
		return got.Code.String()
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
		return limitOf(rule, got, w.Text)
	case "remaining":
		return strconv.FormatUint(uint64(got.LimitRemaining), 10)
	}
	return got.DurationUntilReset.AsDuration().String() // reset
}

// limitOf returns the limit that a status describes: as wanted if that is its name or words, or else with both.
func limitOf(rule *descriptors.Rule, got *rlsv3.RateLimitResponse_DescriptorStatus, wanted string) string {
	if rule == nil {
		return none
	}
	for _, l := range rule.Limits {
		if !l.Unlimited && (got.CurrentLimit == nil || l.Response != got.CurrentLimit) {
			continue
		}
		words := "unlimited"
		if !l.Unlimited {
			words = l.String()
		}
		switch wanted {
		case l.Name, words:
			return wanted
		}
		if l.Name != "" {
			words += fmt.Sprintf(" (named %s)", fields.Printable(l.Name))
		}
		return words
	}
	return none
}

// advice returns a note about a wanted rule that no limits file has.
func (s *testService) advice(w *Want) string {
	if w.Field != "rule" || w.Text == none {
		return ""
	}
	var paths []string
	s.limits.Load().EachRule(func(r *descriptors.Rule) { paths = append(paths, r.Path) })
	if slices.Contains(paths, w.Text) {
		return ""
	}
	if near := fields.Nearest(w.Text, paths); near != "" {
		return fmt.Sprintf(" (no rule has this path; did you mean %s?)", near)
	}
	return " (no rule has this path; rls check prints all rules)"
}

package limitstest

import (
	"context"
	"fmt"
	"maps"
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

// Run runs all tests of f against the limits in config. It adds the rules that the tests meet
// to coverage.
func (f *File) Run(ctx context.Context, config *descriptors.Config, coverage *Coverage) FileReport {
	r := &runner{file: f, config: config}
	r.store.Set(config)
	matchCounts := coverage.counts(config)
	report := FileReport{File: f.Name, Limits: f.Limits}
	for i := range f.Tests {
		if ctx.Err() != nil {
			break
		}
		report.Tests = append(report.Tests, r.runTest(ctx, &f.Tests[i], matchCounts))
	}
	return report
}

// runner runs the tests of one file.
type runner struct {
	file   *File
	config *descriptors.Config
	store  descriptors.Store
}

func (r *runner) runTest(ctx context.Context, t *Test, matchCounts map[*descriptors.Rule]int) TestReport {
	report := TestReport{Name: t.Name, Line: t.Line}
	began := time.Now()
	s := r.newTestService(matchCounts)
	for i := range t.Requests {
		failure, failedAt := s.send(ctx, &t.Requests[i])
		if failure == nil {
			continue
		}
		if len(report.Failures) == 0 {
			failure.Explanation = r.explain(ctx, t, i, failedAt)
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

// explain explains the failed request: it repeats the test up to repetition n of request i in
// a new service.
func (r *runner) explain(ctx context.Context, t *Test, i, n int) *explain.Report {
	s := r.newTestService(nil)
	for j := range i {
		s.sendTimes(ctx, &t.Requests[j], t.Requests[j].Repeat)
	}
	failed := &t.Requests[i]
	s.sendTimes(ctx, failed, n)
	o := r.file.Settings
	return explain.New(explain.Options{
		Limits: &r.store, Layer: backend.Counters{Limiter: s.limiter}, Now: func() time.Time { return failed.time(n) },
		ShadowMode: o.ShadowMode, QuotaMode: o.QuotaMode, AllOrNone: o.AllOrNone,
	}).Explain(ctx, failed.Message)
}

// testService is a service with empty counters and a virtual clock.
type testService struct {
	service *service.Service
	limiter *local.Limiter
	config  *descriptors.Config
	now     time.Time
	last    observer
}

func (r *runner) newTestService(matchCounts map[*descriptors.Rule]int) *testService {
	o := r.file.Settings
	s := &testService{config: r.config, limiter: local.New(local.Options{})}
	s.last.matchCounts = matchCounts
	s.service = service.New(service.Options{
		Limits: &r.store, Limiter: s.limiter, Observers: []service.Observer{&s.last},
		Now: func() time.Time { return s.now }, ShadowMode: o.ShadowMode, QuotaMode: o.QuotaMode, AllOrNone: o.AllOrNone, Headers: headers, PolicyHeaders: true,
	})
	return s
}

// observer is a service.Observer that keeps the rules of the last call.
type observer struct {
	matchCounts    map[*descriptors.Rule]int // nil if rules are not counted
	rules          []*descriptors.Rule
	deniedInShadow []bool // by descriptor
}

// Answered implements service.Observer.
func (o *observer) Answered(_ context.Context, c *service.Call) {
	o.rules = append(o.rules[:0], c.Rules...)
	o.deniedInShadow = append(o.deniedInShadow[:0], make([]bool, len(c.Rules))...)
	for i := range c.Decisions() {
		d := c.Decision(i)
		if d.Shadow && d.Result.Err == nil && !d.Result.Allowed {
			o.deniedInShadow[d.Descriptor] = true
		}
	}
	if o.matchCounts == nil {
		return
	}
	for _, rule := range c.Rules {
		if rule != nil {
			o.matchCounts[rule]++
		}
	}
}

// answer is the answer to a request.
type answer struct {
	response *rlsv3.RateLimitResponse
	err      error
}

func (s *testService) call(ctx context.Context, r *Request, i int) answer {
	s.now = r.time(i)
	response, err := s.service.ShouldRateLimit(ctx, r.Message)
	return answer{response, err}
}

func (s *testService) sendTimes(ctx context.Context, r *Request, times int) {
	for i := range times {
		s.call(ctx, r, i)
	}
}

// send sends r as often as it repeats. It returns nil, or the first failure and the
// repetition that failed, from 0.
func (s *testService) send(ctx context.Context, r *Request) (failure *Failure, failedAt int) {
	admitted := 0
	for i := range r.Repeat {
		a := s.call(ctx, r, i)
		if a.err == nil && a.response.OverallCode == rlsv3.RateLimitResponse_OK {
			admitted++
		}
		if failure != nil {
			continue // later requests need the charges of this one
		}
		isLast := i == r.Repeat-1
		mismatches := s.compare(r, a, isLast)
		if isLast && r.Want.Admitted != nil && *r.Want.Admitted != admitted {
			mismatches = append(mismatches, Mismatch{"admitted", strconv.Itoa(admitted), strconv.Itoa(*r.Want.Admitted)})
		}
		if len(mismatches) > 0 {
			failedAt = i
			failure = &Failure{
				Line: r.Line, Domain: r.Message.Domain, Descriptors: r.Descriptors, Time: s.now, Repetition: i + 1, Repeat: r.Repeat,
				Mismatches: mismatches,
			}
		}
	}
	return failure, failedAt
}

// compare compares the answer with the wanted one.
func (s *testService) compare(r *Request, a answer, isLast bool) []Mismatch {
	want := &r.Want
	c := &comparison{}
	if a.err != nil {
		text := status.Convert(a.err).Message()
		if want.Error == nil || !strings.Contains(text, *want.Error) {
			c.add("error", text, optional(want.Error, "none"))
		}
		return c.mismatches
	}
	if want.Error != nil {
		c.add("error", "none", *want.Error)
	}
	c.text("code", a.response.OverallCode.String(), want.Code)
	for i := range want.Statuses {
		prefix := ""
		if len(want.Statuses) > 1 {
			prefix = fmt.Sprintf("statuses[%d].", i)
		}
		s.compareStatus(c, prefix, i, a.response.Statuses[i], &want.Statuses[i], isLast)
	}
	if isLast && want.Body != nil {
		body := string(a.response.RawBody)
		if body == "" {
			body = NoBody
		}
		c.text("body", body, want.Body)
	}
	if isLast && len(want.Headers) > 0 {
		got := map[string]string{}
		for _, h := range a.response.ResponseHeadersToAdd {
			got[strings.ToLower(h.Key)] = h.Value
		}
		for _, name := range slices.Sorted(maps.Keys(want.Headers)) {
			value, ok := got[name]
			if !ok {
				value = "none"
			}
			if wanted := want.Headers[name]; value != wanted {
				c.add("header "+name, value, wanted)
			}
		}
	}
	return c.mismatches
}

// compareStatus compares the status of descriptor i.
func (s *testService) compareStatus(c *comparison, prefix string, i int, got *rlsv3.RateLimitResponse_DescriptorStatus, want *WantStatus, isLast bool) {
	c.text(prefix+"code", got.Code.String(), want.Code)
	rule := s.last.rules[i]
	if want.Rule != nil {
		path := NoRule
		if rule != nil {
			path = rule.Path
		}
		if path != *want.Rule {
			c.add(prefix+"rule", path, *want.Rule+s.ruleAdvice(*want.Rule))
		}
	}
	if want.DeniedInShadow != nil && *want.DeniedInShadow != s.last.deniedInShadow[i] {
		c.add(prefix+"denied_in_shadow", strconv.FormatBool(s.last.deniedInShadow[i]), strconv.FormatBool(*want.DeniedInShadow))
	}
	if !isLast {
		return
	}
	if want.Limit != nil {
		name, words := limitOf(rule, got)
		if *want.Limit != name && *want.Limit != words {
			if name != "" {
				words = fmt.Sprintf("%s (named %s)", words, fields.Printable(name))
			}
			c.add(prefix+"limit", words, *want.Limit)
		}
	}
	if want.Remaining != nil && *want.Remaining != got.LimitRemaining {
		c.add(prefix+"remaining", strconv.FormatUint(uint64(got.LimitRemaining), 10), strconv.FormatUint(uint64(*want.Remaining), 10))
	}
	if reset := got.DurationUntilReset.AsDuration(); want.Reset != nil && *want.Reset != reset {
		c.add(prefix+"reset", reset.String(), want.Reset.String())
	}
}

// limitOf returns the name and the words of the limit that a status describes.
func limitOf(rule *descriptors.Rule, got *rlsv3.RateLimitResponse_DescriptorStatus) (name, words string) {
	if rule == nil {
		return "", "none"
	}
	for _, l := range rule.Limits {
		switch {
		case l.Unlimited:
			return l.Name, "unlimited"
		case got.CurrentLimit != nil && l.Response == got.CurrentLimit:
			return l.Name, l.String()
		}
	}
	return "", "none"
}

// ruleAdvice returns a note about a wanted rule that no limits file has.
func (s *testService) ruleAdvice(path string) string {
	if path == NoRule {
		return ""
	}
	var paths []string
	exists := false
	s.config.EachRule(func(r *descriptors.Rule) {
		exists = exists || r.Path == path
		paths = append(paths, r.Path)
	})
	if exists {
		return ""
	}
	if near := fields.Nearest(path, paths); near != "" {
		return fmt.Sprintf(" (no rule has this path; did you mean %s?)", near)
	}
	return " (no rule has this path; rls check prints all rules)"
}

// comparison collects mismatches.
type comparison struct{ mismatches []Mismatch }

func (c *comparison) add(field, got, want string) {
	c.mismatches = append(c.mismatches, Mismatch{field, got, want})
}

func (c *comparison) text(field, got string, want *string) {
	if want != nil && got != *want {
		c.add(field, got, *want)
	}
}

func optional(text *string, fallback string) string {
	if text == nil {
		return fallback
	}
	return *text
}

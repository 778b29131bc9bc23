package explain_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/denycache"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
)

var (
	fileKeys      = []string{"a", "a", "b", "ab", "a*", "*"}
	fileValues    = []string{"", "x", "y", "X", " x", "x*", "*y", "*"}
	requestKeys   = []string{"a", "a", "a", "a", "b", "b", "ab", "c", "A"}
	requestValues = []string{"x", "x", "x", "x", "y", "y", "xy", "", "X", " x", "xyz"}
	units         = []string{"minute", "hour", "day"}
)

// drawDescriptors returns random descriptors of a limits file.
func drawDescriptors(t *rapid.T, depth int) string {
	var items []string
	usedNames := map[string]bool{}
	for range rapid.IntRange(1, 5).Draw(t, "descriptors") {
		key, value := rapid.SampledFrom(fileKeys).Draw(t, "key"), rapid.SampledFrom(fileValues).Draw(t, "value")
		if usedNames[key+"="+value] {
			continue
		}
		usedNames[key+"="+value] = true
		fields := []string{fmt.Sprintf("key: %q", key)}
		if value != "" {
			fields = append(fields, fmt.Sprintf("value: %q", value))
		}
		for _, flag := range []string{"shadow_mode", "quota_mode"} {
			if rapid.IntRange(0, 4).Draw(t, flag) == 0 {
				fields = append(fields, flag+": true")
			}
		}
		if strings.Contains(key+value, "*") && rapid.Bool().Draw(t, "share") {
			fields = append(fields, "share_threshold: true")
		}
		fields = append(fields, drawLimits(t))
		if depth > 1 && rapid.Bool().Draw(t, "children") {
			fields = append(fields, "descriptors: "+drawDescriptors(t, depth-1))
		}
		items = append(items, "{"+strings.Join(fields, ", ")+"}")
	}
	return "[" + strings.Join(items, ", ") + "]"
}

// drawLimits returns no limit, an unlimited limit, or one or two limits.
func drawLimits(t *rapid.T) string {
	count := rapid.IntRange(0, 3).Draw(t, "limits")
	if count == 3 {
		return "rate_limits: [{unlimited: true, replaces: [{name: n0}]}]"
	}
	var limits []string
	for i := range count {
		algorithm := rapid.SampledFrom(limit.Algorithms()).Draw(t, "algorithm")
		if algorithm.HasHolds() && i > 0 {
			algorithm = limit.FixedWindow // two limits with holds would share a counter
		}
		text := fmt.Sprintf("requests_per_unit: %d, algorithm: %s, enabled: %t",
			rapid.IntRange(0, 4).Draw(t, "requests"), algorithm, rapid.IntRange(0, 4).Draw(t, "enabled") > 0)
		if algorithm.HasHolds() {
			text += ", hold: 2m"
		} else {
			text += fmt.Sprintf(", unit: %s, charge_denied: %t", units[i], rapid.Bool().Draw(t, "charge denied"))
		}
		if name := rapid.IntRange(0, 4).Draw(t, "name"); name < 3 {
			text += fmt.Sprintf(", name: n%d", name)
			if rapid.IntRange(0, 4).Draw(t, "replaces") == 0 {
				text += fmt.Sprintf(", replaces: [{name: n%d}]", (name+1)%3)
			}
		}
		limits = append(limits, "{"+text+"}")
	}
	return "rate_limits: [" + strings.Join(limits, ", ") + "]"
}

func drawRequest(t *rapid.T) *rlsv3.RateLimitRequest {
	req := &rlsv3.RateLimitRequest{Domain: "d"}
	for range rapid.IntRange(1, 3).Draw(t, "descriptors of the request") {
		descriptor := &ratelimitv3.RateLimitDescriptor{}
		for range rapid.SampledFrom([]int{1, 1, 1, 1, 2, 2, 3}).Draw(t, "entries") {
			descriptor.Entries = append(descriptor.Entries, &ratelimitv3.RateLimitDescriptor_Entry{
				Key: rapid.SampledFrom(requestKeys).Draw(t, "key"), Value: rapid.SampledFrom(requestValues).Draw(t, "value"),
			})
		}
		if rapid.IntRange(0, 9).Draw(t, "own limit") == 0 {
			descriptor.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 2, Unit: typev3.RateLimitUnit_MINUTE}
		}
		req.Descriptors = append(req.Descriptors, descriptor)
	}
	return req
}

// decisions is a service.Observer that keeps the decisions of the last call.
type decisions struct {
	rules []string // the path of the rule of each descriptor, or ""
	list  []service.Decision
}

// CallAnswered implements service.Observer.
func (d *decisions) CallAnswered(_ context.Context, c *service.Call) {
	d.rules, d.list = nil, nil
	for _, r := range c.Rules {
		path := ""
		if r != nil {
			path = r.Path
		}
		d.rules = append(d.rules, path)
	}
	for i := range c.DecisionCount() {
		decision := c.Decision(i)
		hit := *decision.Hit
		hit.Key = append([]byte(nil), hit.Key...)
		decision.Hit = &hit
		d.list = append(d.list, decision)
	}
}

func compileLimits(t require.TestingT, yaml string) *descriptors.Store {
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(yaml)}}, limitsfile.Options{})
	require.NoError(t, err, yaml)
	store := new(descriptors.Store)
	store.Set(descriptors.Compile(set))
	return store
}

func TestReportAgreesWithTheNextDecision(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		store := compileLimits(t, "domain: d\ndescriptors: "+drawDescriptors(t, 3))
		now := time.Unix(1_800_000_000, 0)
		allOrNone := rapid.Bool().Draw(t, "all or none")
		counters := local.New(local.Options{MaxKeys: 10_000})
		options := explain.Options{
			Limits: store, AllOrNone: allOrNone, Now: func() time.Time { return now },
			ShadowMode: rapid.IntRange(0, 9).Draw(t, "shadow mode") == 0, QuotaMode: rapid.IntRange(0, 9).Draw(t, "quota mode") == 0,
		}
		options.Layer = backend.Counters{Limiter: counters}
		if rapid.Bool().Draw(t, "deny cache") {
			options.Layer = denycache.New(options.Layer, denycache.Options{SizeBytes: 64 << 10})
		}
		var got decisions
		rateLimiter := service.New(service.Options{
			Limits: store, Limiter: options.Layer, Observers: []service.Observer{&got}, Now: options.Now,
			ShadowMode: options.ShadowMode, QuotaMode: options.QuotaMode, AllOrNone: allOrNone,
		})
		explainer := explain.New(options)
		requests := rapid.SliceOfN(rapid.Custom(drawRequest), 1, 3).Draw(t, "requests")
		for range rapid.IntRange(1, 12).Draw(t, "calls") {
			now = now.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "pause")) * time.Second)
			req := rapid.SampledFrom(requests).Draw(t, "request")
			report := explainer.Explain(t.Context(), req)
			require.Equal(t, report, explainer.Explain(t.Context(), req), "an explanation changes nothing")
			resp, err := rateLimiter.ShouldRateLimit(t.Context(), req)
			require.NoError(t, err)
			checkReport(t, report, resp, &got, now, allOrNone)
			for i, d := range req.Descriptors {
				checkTrace(t, store.Load().Domain("d"), d.GetEntries(), &report.Descriptors[i])
			}
		}
	})
}

// checkReport compares a report with the answer that came after it.
func checkReport(t *rapid.T, report *explain.Report, resp *rlsv3.RateLimitResponse, got *decisions, now time.Time, allOrNone bool) {
	require.Equal(t, resp.OverallCode.String(), report.Code)
	require.Len(t, report.Descriptors, len(resp.Statuses))
	hitsOfCounter := map[string]int{}
	for _, decision := range got.list {
		hitsOfCounter[string(decision.Key)+decision.Limit.Tag()]++
	}
	decisionIndex := 0
	for i, status := range resp.Statuses {
		d := &report.Descriptors[i]
		require.Equal(t, got.rules[i], d.Rule)
		require.Equal(t, status.Code.String(), d.Code)
		require.Equal(t, status.LimitRemaining, d.Remaining)
		require.Equal(t, status.CurrentLimit != nil, d.DecidingLimit != nil)
		for _, limitReport := range d.Limits {
			if limitReport.State != explain.Counted {
				continue
			}
			decision := got.list[decisionIndex]
			decisionIndex++
			require.Equal(t, i, decision.Descriptor)
			require.Equal(t, string(decision.Key), limitReport.Counter.Name)
			require.Equal(t, decision.Limit.Tag(), limitReport.Counter.Tag)
			require.Equal(t, decision.Limit.String(), limitReport.Limit)
			result := decision.Result
			require.Equal(t, result.Source.String(), limitReport.NextHit.Source)
			require.Equal(t, result.Allowed, limitReport.NextHit.Allowed)
			require.Equal(t, max(result.Remaining, 0), limitReport.NextHit.Remaining)
			require.Equal(t, result.RetryAfter == limit.Never, limitReport.NextHit.Never)
			switch {
			case result.Allowed || limitReport.NextHit.Never:
				require.Nil(t, limitReport.NextHit.RetryAt)
			case limitReport.NextHit.RetryAt != nil && !limitReport.ChargeDenied && (!allOrNone || result.Source != backend.SourceLocal):
				retryAt := now.Add(time.Duration(result.RetryAfter) * time.Microsecond)
				require.WithinDuration(t, retryAt, *limitReport.NextHit.RetryAt, time.Millisecond)
			default:
				require.True(t, limitReport.NextHit.RetryAt != nil || hitsOfCounter[limitReport.Counter.Name+limitReport.Counter.Tag] > 1 || allOrNone)
			}
		}
	}
	require.Len(t, got.list, decisionIndex)
}

// checkTrace checks that the levels of d are the levels that Match walks.
func checkTrace(t *rapid.T, domain *descriptors.Domain, entries []*ratelimitv3.RateLimitDescriptor_Entry, descriptor *explain.Descriptor) {
	trace := domain.TraceWithBudget(new(descriptors.Budget), entries)
	require.Equal(t, domain.Match(entries), trace.Rule)
	for _, step := range trace.Steps {
		var bestCandidate *descriptors.Candidate
		for i := range step.Candidates {
			if c := &step.Candidates[i]; c.Kind != descriptors.NoMatch && (bestCandidate == nil || c.Kind < bestCandidate.Kind) {
				bestCandidate = c
			}
		}
		require.Equal(t, bestCandidate, step.Winner, "the winner has the best kind of match, and comes first in the file")
	}
	if len(descriptor.Levels) > 0 {
		require.Len(t, descriptor.Levels, len(trace.Steps))
	}
}

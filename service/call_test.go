package service

import (
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/limit"
)

// newConfig returns the limits of the domain d, which has one rule.
func newConfig(t *testing.T) *descriptors.Config {
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "f", Data: []byte("domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]\n")}}, limitsfile.Options{})
	require.NoError(t, err)
	return descriptors.Compile(set)
}

func ruleOf(f limitsfile.RuleFields) *descriptors.Rule { return &descriptors.Rule{RuleFields: f} }

func TestCallIsGivenUpOnlyIfItsCallerCancelsOrIsLate(t *testing.T) {
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		c := &Call{Err: status.Error(code, "x")}
		assert.Equal(t, code == codes.Canceled || code == codes.DeadlineExceeded, c.IsGivenUp(), code)
	}
}

func TestCallKnowsWhetherItsDomainWasFound(t *testing.T) {
	for domain, want := range map[string]bool{"d": true, "other": false} {
		c := &Call{replacedNames: map[string]bool{}}
		require.NoError(t, c.match(newConfig(t), &rlsv3.RateLimitRequest{Domain: domain, Descriptors: []*ratelimitv3.RateLimitDescriptor{desc("a=1")}}, &Options{}))
		assert.Equal(t, want, c.HasDomain, domain)
	}
}

func TestDenialOfAHitAboveMaxHitsDoesNotDenyTheGroup(t *testing.T) {
	for name, c := range map[string]struct {
		exceedsMaxHits bool
		allowed        [2]bool // the results of a hit above max_hits, and of another hit
		want           bool
	}{
		"no hit is denied":                              {false, [2]bool{true, true}, false},
		"a hit is denied":                               {false, [2]bool{false, true}, true},
		"the hit above max_hits is denied":              {true, [2]bool{false, true}, false},
		"a hit within max_hits is denied":               {true, [2]bool{true, false}, true},
		"all hits are denied":                           {true, [2]bool{false, false}, true},
		"a hit is above max_hits, and no hit is denied": {true, [2]bool{true, true}, false},
	} {
		call := &Call{
			Rules: []*descriptors.Rule{ruleOf(limitsfile.RuleFields{MaxHits: 5})}, hitDescriptors: []int{0, 0}, exceedsMaxHits: c.exceedsMaxHits,
			hits: []backend.Hit{{N: 9, AllOrNone: true}, {N: 1, AllOrNone: true}}, results: make([]backend.Result, 2),
		}
		for j := range call.results {
			call.results[j].Allowed = c.allowed[j]
		}
		assert.Equal(t, c.want, call.hasDeniedGroup(), name)
	}
}

func TestDeniedGroupChargesOnlyHitsOutsideTheGroup(t *testing.T) {
	allowedResult := backend.Result{Result: limit.Result{Allowed: true}}
	for _, isGroupDenied := range []bool{false, true} {
		c := &Call{isGroupDenied: isGroupDenied, hits: []backend.Hit{{N: 1, AllOrNone: true}, {N: 1}}, results: []backend.Result{allowedResult, allowedResult}}
		assert.Equal(t, []bool{!isGroupDenied, true}, []bool{c.isCharged(0), c.isCharged(1)})
	}
}

func TestHitsAreNoGroupIfADescriptorIsInQuotaMode(t *testing.T) {
	quotaRule, usualRule := ruleOf(limitsfile.RuleFields{QuotaMode: true}), ruleOf(limitsfile.RuleFields{})
	lim := backendtest.NewLimit(t, limit.Spec{Requests: 5, Unit: limit.Hour})
	for name, c := range map[string]struct {
		rules []*descriptors.Rule
		want  bool
	}{
		"no quota mode":     {[]*descriptors.Rule{usualRule, usualRule}, true},
		"first descriptor":  {[]*descriptors.Rule{quotaRule, usualRule}, false},
		"second descriptor": {[]*descriptors.Rule{usualRule, quotaRule}, false},
	} {
		call := &Call{config: newConfig(t), Rules: c.rules, hits: []backend.Hit{{N: 1, Limit: lim}, {N: 1, Limit: lim}}, hitDescriptors: []int{0, 1}}
		new(Service).chargeNothingIfDenied(call)
		assert.Equal(t, []bool{c.want, c.want}, []bool{call.hits[0].AllOrNone, call.hits[1].AllOrNone}, name)
	}
}

func TestHeaderHasTheHoldUnlessAnotherLimitDeniesTheCall(t *testing.T) {
	slotLimit := backendtest.NewLimit(t, limit.Spec{Algorithm: limit.Concurrency, Requests: 5, Hold: 30e6})
	rateLimit := backendtest.NewLimit(t, limit.Spec{Requests: 5, Unit: limit.Hour})
	hold, deniedResult := backend.Hit{Limit: slotLimit, N: 1, HoldID: "h"}, backend.Result{}
	allowedResult := backend.Result{Result: limit.Result{Allowed: true}}
	for name, c := range map[string]struct {
		hits    []backend.Hit
		results []backend.Result
		code    rlsv3.RateLimitResponse_Code
		want    []string
	}{
		"no hold":                  {[]backend.Hit{{Limit: rateLimit, N: 1}}, []backend.Result{allowedResult}, rlsv3.RateLimitResponse_OK, nil},
		"hold":                     {[]backend.Hit{hold}, []backend.Result{allowedResult}, rlsv3.RateLimitResponse_OK, []string{"30"}},
		"no free slot":             {[]backend.Hit{hold}, []backend.Result{deniedResult}, rlsv3.RateLimitResponse_OVER_LIMIT, []string{"30"}},
		"another limit denies":     {[]backend.Hit{hold, {Limit: rateLimit, N: 1}}, []backend.Result{allowedResult, deniedResult}, rlsv3.RateLimitResponse_OVER_LIMIT, nil},
		"a quota lets it pass":     {[]backend.Hit{hold, {Limit: rateLimit, N: 1}}, []backend.Result{allowedResult, deniedResult}, rlsv3.RateLimitResponse_OK, []string{"30"}},
		"anonymous hold is denied": {[]backend.Hit{hold, {Limit: slotLimit, N: 1}}, []backend.Result{allowedResult, deniedResult}, rlsv3.RateLimitResponse_OVER_LIMIT, []string{"30"}},
	} {
		stream := &headerStream{}
		(&Call{hits: c.hits, results: c.results}).sendHold(grpc.NewContextWithServerTransportStream(t.Context(), stream), c.code)
		assert.Equal(t, c.want, stream.header.Get(limit.HoldKey), name)
	}
}

func TestStatusDescribesTheDeniedHitEvenIfAnotherWindowIsLonger(t *testing.T) {
	hourLimit := backendtest.NewLimit(t, limit.Spec{Requests: 5, Unit: limit.Hour})
	minuteLimit := backendtest.NewLimit(t, limit.Spec{Requests: 5, Unit: limit.Minute})
	allowedResult := backend.Result{Result: limit.Result{Allowed: true, Remaining: 1, ResetAfter: 3600e6}}
	deniedResult := backend.Result{Result: limit.Result{ResetAfter: 60e6, RetryAfter: 60e6}}
	for want, results := range [][]backend.Result{{deniedResult, allowedResult}, {allowedResult, deniedResult}} {
		c := &Call{hits: []backend.Hit{{Limit: minuteLimit, N: 1}, {Limit: hourLimit, N: 1}}, results: results}
		if want == 1 {
			c.hits[0], c.hits[1] = c.hits[1], c.hits[0]
		}
		assert.Equal(t, want, c.mostRestrictiveHit(0, 2))
	}
}

func TestLongerWaitRaisesTheTimeOfTheStatus(t *testing.T) {
	lim := backendtest.NewLimit(t, limit.Spec{Algorithm: limit.TokenBucket, Requests: 5, Unit: limit.Second})
	for name, c := range map[string]struct{ oldDuration, retryAfter, want int64 }{ // in microseconds
		"shorter wait": {500_000, 300_000, 500_000},
		"longer wait":  {300, 500_000, 500_000},
		"whole second": {1_000_000, 900_000, 1_000_000},
		"same wait":    {500_000, 500_000, 500_000},
	} {
		st := &rlsv3.RateLimitResponse_DescriptorStatus{Code: rlsv3.RateLimitResponse_OVER_LIMIT, DurationUntilReset: &durationpb.Duration{}}
		setDuration(st.DurationUntilReset, c.oldDuration)
		call := &Call{hits: []backend.Hit{{Limit: lim, N: 1}}, results: []backend.Result{{Result: limit.Result{RetryAfter: c.retryAfter}}}, hitDescriptors: []int{0}}
		call.raiseWaits([]*rlsv3.RateLimitResponse_DescriptorStatus{st})
		assert.Equal(t, c.want, st.DurationUntilReset.AsDuration().Microseconds(), name)
	}
}

func TestQuotaWithoutHitsShortensNoWait(t *testing.T) {
	lim := backendtest.NewLimit(t, limit.Spec{Requests: 5, Unit: limit.Minute})
	quotaRule := ruleOf(limitsfile.RuleFields{QuotaMode: true})
	c := &Call{
		config: newConfig(t), Request: &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{desc("a=1"), desc("a=2")}},
		Rules: []*descriptors.Rule{quotaRule, quotaRule}, hitDescriptors: []int{0},
		hits: []backend.Hit{{Limit: lim, N: 1}}, results: []backend.Result{{Result: limit.Result{ResetAfter: 60e6, RetryAfter: 60e6}}},
	}
	assert.Equal(t, int64(60e6), c.retryAfter(false, true))
}

func TestAnswerWithoutADenialGetsNoBody(t *testing.T) {
	resp := &rlsv3.RateLimitResponse{Statuses: []*rlsv3.RateLimitResponse_DescriptorStatus{{Code: rlsv3.RateLimitResponse_OK}}}
	(&Call{Rules: []*descriptors.Rule{ruleOf(limitsfile.RuleFields{})}}).addDenial(resp, nil)
	assert.Empty(t, resp.RawBody)
}

func TestMetadataHasShadowModeOfARuleWithoutHits(t *testing.T) {
	for _, isShadow := range []bool{false, true} {
		c := &Call{Rules: []*descriptors.Rule{ruleOf(limitsfile.RuleFields{ShadowMode: isShadow})}}
		d := c.decisionMetadata(0, 0, 0, &rlsv3.RateLimitResponse_DescriptorStatus{})
		assert.Equal(t, isShadow, d.Fields["shadow_mode"].GetBoolValue())
	}
}

func TestMapAndOtherValueOfMetadataAreNotMerged(t *testing.T) {
	m := map[string]any{"b": 1}
	dst := map[string]any{"text": "x", "map": map[string]any{"a": 1}}
	addMissingFields(dst, map[string]any{"text": m, "map": "x"})
	assert.Equal(t, map[string]any{"text": "x", "map": map[string]any{"a": 1}}, dst)
}

func TestCallWithoutLimitsOrRulesHasNoSwitch(t *testing.T) {
	set := &limitsfile.Set{Domains: []*limitsfile.Domain{{Name: "d", OffSwitch: &limitsfile.AppliedOverride{}}}}
	request := &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{desc("a=1"), desc("b=1")}}
	assert.Nil(t, (&Call{Request: request, Rules: []*descriptors.Rule{nil}}).Switch(0), "no limits are in force")
	c := &Call{Request: request, Rules: []*descriptors.Rule{nil}, config: descriptors.Compile(set)}
	assert.NotNil(t, c.Switch(0))
	assert.Nil(t, c.Switch(1), "a rejected request is matched only in part, so descriptor 1 has no rule")
}

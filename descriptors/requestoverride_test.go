package descriptors

import (
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/limit"
)

func TestRequestOverrideHasTheLimitOfTheRequest(t *testing.T) {
	d := compileFiles(t, "domain: d\ndescriptors: [{key: k, value: v, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 5, name: n}}]").Domain("d")
	for unit, want := range map[int32]limit.Unit{1: limit.Second, 2: limit.Minute, 3: limit.Hour, 4: limit.Day, 5: limit.Month, 6: limit.Year, 7: limit.Week} {
		r, err := d.RuleOfRequestLimit(&ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 42, Unit: typev3.RateLimitUnit(unit)})
		require.NoError(t, err)
		require.Len(t, r.Limits, 1)
		assert.Equal(t, limit.Spec{Requests: 42, Unit: want, Multiplier: 1, ChargeDenied: true}, r.Limits[0].Spec)
		assert.EqualValues(t, unit, r.Limits[0].Response.Unit)
		assert.EqualValues(t, 42, r.Limits[0].Response.RequestsPerUnit)
		assert.False(t, r.ShadowMode || r.QuotaMode)
	}

	r, err := d.RuleOfRequestLimit(&ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: 2, UnitMultiplier: wrapperspb.UInt32(15)})
	require.NoError(t, err)
	assert.EqualValues(t, 15*60*1_000_000, r.Limits[0].Period())
	assert.EqualValues(t, 15, r.Limits[0].Response.UnitMultiplier.GetValue())
}

func TestRequestOverrideSharesTheCounterOfAnEqualLimit(t *testing.T) {
	d := compileFiles(t, "domain: d\ndescriptors: [{key: k, value: v, rate_limit: {unit: minute, requests_per_unit: 5}}]").Domain("d")
	request := entries("k", "v")
	ruleOfFile := d.Match(request)
	ruleOfRequest, err := d.RuleOfRequestLimit(&ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 7, Unit: 2})
	require.NoError(t, err)
	assert.Equal(t, ruleOfFile.Limits[0].Tag(), ruleOfRequest.Limits[0].Tag())
	assert.Equal(t, ruleOfFile.AppendKey(nil, "d", request), ruleOfRequest.AppendKey(nil, "d", request))
}

func TestRequestOverrideTakesTheDefaultsOfTheDomain(t *testing.T) {
	o := &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 7, Unit: 2}
	r, err := compileFiles(t, "domain: d\ndefaults: {algorithm: token_bucket, burst: 3, scope: instance}").Domain("d").RuleOfRequestLimit(o)
	require.NoError(t, err)
	assert.Equal(t, limit.Spec{Algorithm: limit.TokenBucket, Requests: 7, Unit: limit.Minute, Multiplier: 1, Burst: 3, Scope: limit.Instance}, r.Limits[0].Spec)

	r, err = compileFiles(t, "domain: d\ndefaults: {enabled: false}").Domain("d").RuleOfRequestLimit(o)
	require.NoError(t, err)
	assert.Empty(t, r.Limits)
}

func TestRequestOverridePerMonthFollowsTheCalendarOfTheFiles(t *testing.T) {
	for isOn, want := range map[bool]string{true: "UTC", false: ""} {
		set, err := limitsfile.Parse([]limitsfile.File{{Name: "f", Data: []byte("domain: d")}}, limitsfile.Options{CalendarMonths: isOn})
		require.NoError(t, err)
		monthOverride := &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: typev3.RateLimitUnit_MONTH}
		r, err := Compile(set).Domain("d").RuleOfRequestLimit(monthOverride)
		require.NoError(t, err)
		assert.Equal(t, want, r.Limits[0].Timezone)
	}
}

func TestInvalidRequestOverrideIsAnError(t *testing.T) {
	d := compileFiles(t, "domain: d").Domain("d")
	for _, test := range []struct {
		override *ratelimitv3.RateLimitDescriptor_RateLimitOverride
		want     string
	}{
		{&ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1}, "limit: unit: got 0, want SECOND (1)"},
		{&ratelimitv3.RateLimitDescriptor_RateLimitOverride{Unit: 8}, "limit: unit: got 8, want SECOND (1)"},
		{&ratelimitv3.RateLimitDescriptor_RateLimitOverride{Unit: -1}, "limit: unit: got -1, want SECOND (1)"},
		{&ratelimitv3.RateLimitDescriptor_RateLimitOverride{Unit: 256 + 2}, "limit: unit: got 258, want SECOND (1)"},
		{&ratelimitv3.RateLimitDescriptor_RateLimitOverride{Unit: 2, UnitMultiplier: wrapperspb.UInt32(0)}, "limit: unit_multiplier: got 0, want at least 1"},
		{&ratelimitv3.RateLimitDescriptor_RateLimitOverride{Unit: 6, UnitMultiplier: wrapperspb.UInt32(11)}, "limit: unit_multiplier 11 makes the window longer than ten years"},
		{nil, "limit: unit: got 0, want SECOND (1)"},
	} {
		_, err := d.RuleOfRequestLimit(test.override)
		assert.ErrorContains(t, err, test.want)
	}
}

package service

import (
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/assert"
	"google.golang.org/protobuf/types/known/structpb"
)

const ruleMetadataLimits = `
domain: d
descriptors:
  - key: a
    metadata: {owner: team-a}
    rate_limits:
      - {unit: hour, requests_per_unit: 100}
      - {unit: minute, requests_per_unit: 2, name: two, algorithm: sliding_log}
  - key: b
    rate_limit: {unit: hour, requests_per_unit: 50}
  - key: trial
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 0}
  - key: free
    rate_limit: {unlimited: true, replaces: [{name: two}]}
  - key: replaced
    rate_limit: {unit: hour, requests_per_unit: 0, name: two}
`

func TestRuleMetadataDescribesEachDecision(t *testing.T) {
	withCodeOK := func(fields map[string]any) map[string]any {
		codeAndFields := map[string]any{"code": "OK"}
		for name, value := range fields {
			codeAndFields[name] = value
		}
		return codeAndFields
	}
	decisionOfTwo := map[string]any{"rule": "d > a", "limit": "2 per minute, sliding_log", "limit_name": "two", "over_limit": false, "remaining": 1.0, "source": "local"}
	decisionOfB := map[string]any{"rule": "d > b", "limit": "50 per hour", "over_limit": false, "remaining": 49.0, "source": "local"}
	decisionOverLimit := map[string]any{"code": "OVER_LIMIT", "rule": "d > a", "limit": "2 per minute, sliding_log", "limit_name": "two", "over_limit": true, "remaining": 2.0, "source": "local"}
	for name, c := range map[string]struct {
		descriptors   []*ratelimitv3.RateLimitDescriptor
		wantDecisions []any
		wantDecision  any // index in wantDecisions, or nil
	}{
		"the most restrictive limit": {
			[]*ratelimitv3.RateLimitDescriptor{desc("b=1"), desc("a=1")}, []any{withCodeOK(decisionOfB), withCodeOK(decisionOfTwo)}, 1,
		},
		"over the limit": {
			[]*ratelimitv3.RateLimitDescriptor{withHits(3, desc("a=1")), desc("b=1")},
			[]any{decisionOverLimit, withCodeOK(decisionOfB)},
			0,
		},
		"shadow mode": {
			[]*ratelimitv3.RateLimitDescriptor{desc("trial=1")},
			[]any{withCodeOK(map[string]any{"rule": "d > trial", "limit": "0 per hour", "over_limit": true, "remaining": 0.0, "source": "local", "shadow_mode": true})},
			0,
		},
		"no rule": {[]*ratelimitv3.RateLimitDescriptor{desc("none=1")}, []any{withCodeOK(nil)}, nil},
		"unlimited and replaced": {
			[]*ratelimitv3.RateLimitDescriptor{desc("none=1"), desc("free=1"), desc("replaced=1")},
			[]any{withCodeOK(nil), withCodeOK(map[string]any{"rule": "d > free", "limit": "unlimited"}), withCodeOK(map[string]any{"rule": "d > replaced"})},
			1,
		},
		"limit of the request": {
			[]*ratelimitv3.RateLimitDescriptor{withLimit(desc("x=1"), 7, typev3.RateLimitUnit_MINUTE)},
			[]any{withCodeOK(map[string]any{"rule": "d > the request's own limit", "limit": "7 per minute", "over_limit": false, "remaining": 6.0, "source": "local"})},
			0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, ruleMetadataLimits, func(o *Options) { o.RuleMetadata = true })
			want := map[string]any{"decisions": c.wantDecisions}
			if i, ok := c.wantDecision.(int); ok {
				want["decision"] = c.wantDecisions[i]
			}
			assert.Equal(t, want, f.request(c.descriptors...).DynamicMetadata.AsMap())
		})
	}
}

func withLimit(d *ratelimitv3.RateLimitDescriptor, requests uint32, unit typev3.RateLimitUnit) *ratelimitv3.RateLimitDescriptor {
	d.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: requests, Unit: unit}
	return d
}

func TestRuleMetadataIsAddedToOtherMetadata(t *testing.T) {
	metadata := func(dynamic, rule bool) *structpb.Struct {
		f := newFixture(t, ruleMetadataLimits, func(o *Options) { o.DynamicMetadata, o.RuleMetadata = dynamic, rule })
		return f.request(desc("a=1")).DynamicMetadata
	}
	assert.Nil(t, metadata(false, false))
	bothMetadata := metadata(true, true).AsMap()
	for _, oneMetadata := range []map[string]any{metadata(true, false).AsMap(), metadata(false, true).AsMap()} {
		for name, value := range oneMetadata {
			assert.Equal(t, value, bothMetadata[name])
		}
	}
	assert.Len(t, bothMetadata, 5)
}

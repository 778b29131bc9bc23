package service

import (
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/assert"
)

const metadataLimits = `
domain: d
descriptors:
  - key: a
    metadata: {owner: team-a, tier: {name: gold, level: 1}}
    rate_limit: {unit: second, requests_per_unit: 100}
  - key: b
    detailed_metric: true
    value_to_metric: true
    metadata: {owner: team-b, page: "12", tier: {level: 2, color: red}}
    rate_limit: {unit: second, requests_per_unit: 100}
  - key: over
    metadata: {over: true}
    rate_limit: {unit: second, requests_per_unit: 0}
  - key: shadowed
    shadow_mode: true
    metadata: {shadowed: true}
    rate_limit: {unit: second, requests_per_unit: 0}
  - key: unlimited
    metadata: {unlimited: true}
    rate_limit: {unlimited: true}
`

func newMetadataFixture(t *testing.T) *fixture {
	return newFixture(t, metadataLimits, func(o *Options) { o.DynamicMetadata = true })
}

func TestDynamicMetadataDescribesTheRequest(t *testing.T) {
	f := newMetadataFixture(t)
	d := withHits(3, desc("x=1", "y="))
	d.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 7, Unit: typev3.RateLimitUnit_MINUTE}
	resp := f.send(&rlsv3.RateLimitRequest{Domain: "d", HitsAddend: 2, Descriptors: []*ratelimitv3.RateLimitDescriptor{d, desc("none=z")}})
	assert.Equal(t, map[string]any{
		"domain":     "d",
		"hitsAddend": 2.0,
		"descriptors": []any{
			map[string]any{"entries": []any{"x=1", "y="}, "limit": "requests_per_unit:7 unit:MINUTE", "hitsAddend": 3.0},
			map[string]any{"entries": []any{"none=z"}},
		},
	}, resp.DynamicMetadata.AsMap())
}

func TestMetadataOfPassingRulesIsMerged(t *testing.T) {
	for name, c := range map[string]struct {
		keys []string
		want map[string]any
	}{
		"one rule":                          {[]string{"a"}, map[string]any{"owner": "team-a", "tier": map[string]any{"name": "gold", "level": 1.0}}},
		"maps are merged":                   {[]string{"a", "b"}, map[string]any{"owner": "team-a", "page": "12", "tier": map[string]any{"name": "gold", "level": 1.0, "color": "red"}}},
		"the first value wins":              {[]string{"b", "a"}, map[string]any{"owner": "team-b", "page": "12", "tier": map[string]any{"name": "gold", "level": 2.0, "color": "red"}}},
		"a rule over its limit is left out": {[]string{"over", "shadowed"}, map[string]any{"shadowed": true}},
		"unlimited is left out":             {[]string{"unlimited"}, nil},
		"detailed_metric and value_to_metric don't matter": {[]string{"b"}, map[string]any{"owner": "team-b", "page": "12", "tier": map[string]any{"level": 2.0, "color": "red"}}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newMetadataFixture(t)
			var ds []*ratelimitv3.RateLimitDescriptor
			for _, k := range c.keys {
				ds = append(ds, desc(k+"=x"))
			}
			got := f.request(ds...).DynamicMetadata.AsMap()["metadata"]
			if c.want == nil {
				assert.Nil(t, got)
				return
			}
			assert.Equal(t, c.want, got)
		})
	}
}

func TestMergingMetadataDoesNotChangeTheRules(t *testing.T) {
	f := newMetadataFixture(t)
	metadataBefore := f.request(desc("a=x")).DynamicMetadata.AsMap()["metadata"]
	f.request(desc("a=x"), desc("b=x"))
	f.request(desc("b=x"), desc("a=x"))
	assert.Equal(t, metadataBefore, f.request(desc("a=x")).DynamicMetadata.AsMap()["metadata"])
}

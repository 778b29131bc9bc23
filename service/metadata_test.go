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

func metadataRig(t *testing.T) *rig {
	return newRig(t, metadataLimits, func(o *Options) { o.DynamicMetadata = true })
}

func TestDynamicMetadataTellsWhatWasAsked(t *testing.T) {
	r := metadataRig(t)
	d := hits(3, desc("x=1", "y="))
	d.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 7, Unit: typev3.RateLimitUnit_MINUTE}
	resp := r.send(&rlsv3.RateLimitRequest{Domain: "d", HitsAddend: 2, Descriptors: []*ratelimitv3.RateLimitDescriptor{d, desc("none=z")}})
	assert.Equal(t, map[string]any{
		"domain":     "d",
		"hitsAddend": 2.0,
		"descriptors": []any{
			map[string]any{"entries": []any{"x=1", "y="}, "limit": "requests_per_unit:7 unit:MINUTE", "hitsAddend": 3.0},
			map[string]any{"entries": []any{"none=z"}},
		},
	}, resp.DynamicMetadata.AsMap())
}

func TestMetadataOfRulesThatPassIsMergedFirstWins(t *testing.T) {
	for name, c := range map[string]struct {
		keys []string
		want map[string]any
	}{
		"one":                         {[]string{"a"}, map[string]any{"owner": "team-a", "tier": map[string]any{"name": "gold", "level": 1.0}}},
		"maps are merged":             {[]string{"a", "b"}, map[string]any{"owner": "team-a", "page": "12", "tier": map[string]any{"name": "gold", "level": 1.0, "color": "red"}}},
		"order decides":               {[]string{"b", "a"}, map[string]any{"owner": "team-b", "page": "12", "tier": map[string]any{"name": "gold", "level": 2.0, "color": "red"}}},
		"over is left out":            {[]string{"over", "shadowed"}, map[string]any{"shadowed": true}},
		"unlimited is, too":           {[]string{"unlimited"}, nil},
		"metrics' names don't matter": {[]string{"b"}, map[string]any{"owner": "team-b", "page": "12", "tier": map[string]any{"level": 2.0, "color": "red"}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := metadataRig(t)
			var ds []*ratelimitv3.RateLimitDescriptor
			for _, k := range c.keys {
				ds = append(ds, desc(k+"=x"))
			}
			got := r.ask(ds...).DynamicMetadata.AsMap()["metadata"]
			if c.want == nil {
				assert.Nil(t, got)
				return
			}
			assert.Equal(t, c.want, got)
		})
	}
}

func TestMergingLeavesTheLimitsInForceAsTheyAre(t *testing.T) {
	r := metadataRig(t)
	alone := r.ask(desc("a=x")).DynamicMetadata.AsMap()["metadata"]
	r.ask(desc("a=x"), desc("b=x"))
	r.ask(desc("b=x"), desc("a=x"))
	assert.Equal(t, alone, r.ask(desc("a=x")).DynamicMetadata.AsMap()["metadata"])
}

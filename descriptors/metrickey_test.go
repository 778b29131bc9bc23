package descriptors

import (
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const metricKeyLimits = `domain: d
descriptors:
- {key: exact, value: v, DAY}
- {key: route, value: api/*, share_threshold: true, value_to_metric: true, DAY}
- {key: start, value: a*, value_to_metric: true, DAY}
- {key: any, value: "*", value_to_metric: true, DAY}
- {key: wildcard, value: a*, DAY}
- {key: user, value_to_metric: true, DAY, descriptors: [{key: path, DAY}]}
- {key: plain, DAY}
- {key: detail, detailed_metric: true, DAY, descriptors: [{key: path, value: a*, detailed_metric: true, value_to_metric: true, DAY}]}
- {key: shared, value: x*, share_threshold: true, DAY, descriptors: [
    {key: detail, detailed_metric: true, DAY}, {key: plain, descriptors: [{key: user, value_to_metric: true, DAY}]}]}
- {key: kw*, DAY}
- {key: kv*, value_to_metric: true, DAY}
- {key: ks*, share_threshold: true, DAY}
- {key: kx*, value: y*, DAY}
- {key: kz*, share_threshold: true, value_to_metric: true, DAY}
- {key: fixed, value: v, detailed_metric: true, DAY}
`

func TestMetricKeyEqualsTheKeyOfTheIncumbent(t *testing.T) {
	d := compileFiles(t, strings.ReplaceAll(metricKeyLimits, "DAY", tenAMinute)).Domain("d")
	for _, c := range []struct {
		name                string
		request             []string
		key, path           string
		otherKey, otherPath string // the key and path after ReplaceVaryingTexts with "other"; empty if the key does not vary
	}{
		{"exact value", []string{"exact", "v"}, "d.exact_v", "d > exact=v", "", ""},
		{"wildcard with share_threshold", []string{"route", "api/1"}, "d.route_api/*", "d > route=api/*", "", ""},
		{"wildcard with value_to_metric", []string{"start", "ab"}, "d.start_ab", "d > start=ab", "d.start_other", "d > start=other"},
		{"wildcard with value_to_metric, empty value", []string{"any", ""}, "d.any", "d > any=", "d.any_other", "d > any=other"},
		{"wildcard", []string{"wildcard", "ab"}, "d.wildcard_a*", "d > wildcard=a*", "", ""},
		{"text of a wildcard", []string{"wildcard", "a*"}, "d.wildcard_a*", "d > wildcard=a*", "", ""},
		{"value_to_metric", []string{"user", "x"}, "d.user_x", "d > user=x", "d.user_other", "d > user=other"},
		{"value_to_metric, empty value", []string{"user", ""}, "d.user", "d > user=", "d.user_other", "d > user=other"},
		{"value_to_metric of a parent", []string{"user", "x", "path", "y"}, "d.user_x.path", "d > user=x > path", "d.user_other.path", "d > user=other > path"},
		{"any value", []string{"plain", "x"}, "d.plain", "d > plain", "", ""},
		{"detailed_metric", []string{"detail", "x"}, "d.detail_x", "d > detail=x", "d.detail_other", "d > detail=other"},
		{"detailed_metric, empty value", []string{"detail", ""}, "d.detail_", "d > detail=", "d.detail_other", "d > detail=other"},
		{
			"detailed_metric of two entries",
			[]string{"detail", "x", "path", "ab"},
			"d.detail_x.path_ab", "d > detail=x > path=ab", "d.detail_other.path_other", "d > detail=other > path=other",
		},
		{
			"detailed_metric below share_threshold",
			[]string{"shared", "xy", "detail", "z"},
			"d.shared_x*.detail_z", "d > shared=x* > detail=z", "d.shared_x*.detail_other", "d > shared=x* > detail=other",
		},
		{
			"detailed_metric below share_threshold, empty value",
			[]string{"shared", "xy", "detail", ""},
			"d.shared_x*.detail", "d > shared=x* > detail=", "d.shared_x*.detail_other", "d > shared=x* > detail=other",
		},
		{
			"value_to_metric three levels deep",
			[]string{"shared", "xy", "plain", "p", "user", "q"},
			"d.shared_x*.plain.user_q", "d > shared=x* > plain > user=q", "d.shared_x*.plain.user_other", "d > shared=x* > plain > user=other",
		},
		{"* in the key", []string{"kw1", "v"}, "d.kw1_kw*", "d > kw1", "d.other_kw*", "d > other"},
		{"* in the key, empty value", []string{"kw1", ""}, "d.kw1_kw*", "d > kw1", "d.other_kw*", "d > other"},
		{"* in the key with value_to_metric", []string{"kv1", "v"}, "d.kv1_v", "d > kv1=v", "d.other_other", "d > other=other"},
		{"* in the key with share_threshold", []string{"ks1", "v"}, "d.ks1_ks*", "d > ks1", "d.other_ks*", "d > other"},
		{"* in key and value", []string{"kx1", "y1"}, "d.kx1_kx*_y*", "d > kx1=y*", "d.other_kx*_y*", "d > other=y*"},
		{"text of a * in key and value", []string{"kx*", "y*"}, "d.kx*_y*", "d > kx*=y*", "d.other_kx*_y*", "d > other=y*"},
		{"text of a * in the key", []string{"kx*", "y1"}, "d.kx*_kx*_y*", "d > kx*=y*", "d.other_kx*_y*", "d > other=y*"},
		{"text of a * in the value", []string{"kx1", "y*"}, "d.kx1_kx*_y*", "d > kx1=y*", "d.other_kx*_y*", "d > other=y*"},
		{"text of a * in the key only", []string{"kw*", "v"}, "d.kw*_kw*", "d > kw*", "d.other_kw*", "d > other"},
		{"* in the key with share_threshold and value_to_metric", []string{"kz1", "v"}, "d.kz1_kz*", "d > kz1", "d.other_kz*", "d > other"},
		{"detailed_metric of a fixed value", []string{"fixed", "v"}, "d.fixed_v", "d > fixed=v", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			request := entries(c.request...)
			r := d.Match(request)
			require.NotNil(t, r)
			assert.Equal(t, "x"+c.key, string(r.AppendMetricKey([]byte("x"), "d", request)))
			assert.Equal(t, c.path, r.MetricPath(request))
			assert.Equal(t, c.otherKey != "", r.MetricKeyVaries())
			if c.otherKey != "" {
				replacedEntries := r.ReplaceVaryingTexts(request, "other")
				assert.Equal(t, c.otherKey, string(r.AppendMetricKey(nil, "d", replacedEntries)))
				assert.Equal(t, c.otherPath, r.MetricPath(replacedEntries))
			} else {
				assert.Equal(t, r.Path, r.MetricPath(request))
			}
		})
	}
}

func TestMetricKeyOfALimitInTheRequestHasAllValues(t *testing.T) {
	d := compileFiles(t, oneDescriptor(tenAMinute)).Domain("d")
	r, err := d.RuleOfRequestLimit(&ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: 1})
	require.NoError(t, err)
	request := entries("k", "v", "l", "")
	assert.True(t, r.MetricKeyVaries())
	assert.Equal(t, "d.k_v.l", string(r.AppendMetricKey(nil, "d", request)))
	assert.Equal(t, "d > the request's own limit > k=v > l", r.MetricPath(request))
	assert.Equal(t, "d.other", string(r.AppendMetricKey(nil, "d", r.ReplaceVaryingTexts(request, "other"))))
	assert.Equal(t, "d > the request's own limit > other", r.MetricPath(r.ReplaceVaryingTexts(request, "other")))
}

func TestMetricFlagsTellRulesApart(t *testing.T) {
	fieldsByFlags := map[string]string{}
	for _, fields := range []string{
		"value: a*\n", "value: a*\nvalue_to_metric: true\n", "value: a*\ndetailed_metric: true\n", "value: a*\nshare_threshold: true\n",
		"value: a*\nshare_threshold: true\nvalue_to_metric: true\n", "value: a*\nshare_threshold: true\ndetailed_metric: true\n",
	} {
		flags := compileFiles(t, oneDescriptor(fields+tenAMinute)).Domain("d").Match(entries("k", "ab")).MetricFlags()
		assert.NotContains(t, fieldsByFlags, flags)
		fieldsByFlags[flags] = fields
	}
	assert.Contains(t, fieldsByFlags, "")
}

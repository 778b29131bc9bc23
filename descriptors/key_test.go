package descriptors

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAppendKey(t *testing.T) {
	d := compile(t, strings.ReplaceAll(`domain: d
descriptors:
- {key: k, DAY, descriptors: [{key: l, DAY}]}
- {key: r, value: api/*, share_threshold: true, DAY, descriptors: [{key: s, DAY}, {key: t, value: x*y*, share_threshold: true, DAY}]}
- {key: u, value: a*, DAY}
- {key: kw*, share_threshold: true, DAY}
- {key: z*, value: v, share_threshold: true, DAY}
- {key: p, value: "50%|=*", share_threshold: true, DAY}
`, "DAY", tenAMinute)).Domain("d")
	for _, test := range []struct {
		name, domain string
		request      []string
		want         string
	}{
		{"one entry", "d", []string{"k", "v"}, "d|k=v"},
		{"two entries", "d", []string{"k", "v", "l", "/a/b"}, "d|k=v|l=/a/b"},
		{"empty values keep their =", "d", []string{"k", "", "l", ""}, "d|k=|l="},
		{"special bytes are escaped", "d", []string{"k", "a|b=c%d e\x00\nü\xff"}, "d|k=a%7Cb%3Dc%25d%20e%00%0A%C3%BC%FF"},
		{"also in the domain", "a|b=%", []string{"k", "v"}, "a%7Cb%3D%25|k=v"},
		{"a * of the request is escaped", "d", []string{"u", "a*"}, "d|u=a%2A"},
		{"each value of a wildcard has its counter", "d", []string{"u", "ab"}, "d|u=ab"},
		{"shared: the pattern", "d", []string{"r", "api/1"}, "d|r=api/*"},
		{"shared: the text of the pattern", "d", []string{"r", "api/*"}, "d|r=api/*"},
		{"shared by position", "d", []string{"r", "api/1", "s", "q"}, "d|r=api/*|s=q"},
		{"shared at two positions", "d", []string{"r", "api/1", "t", "x-y-"}, "d|r=api/*|t=x*y*"},
		{"shared with a * key: by key", "d", []string{"kw1", "a"}, "d|kw1=*"},
		{"shared with a * key and a value", "d", []string{"z1", "v"}, "d|z1=v"},
		{"a pattern is escaped but for its *", "d", []string{"p", "50%|=1"}, "d|p=50%25%7C%3D*"},
	} {
		t.Run(test.name, func(t *testing.T) {
			es := entries(test.request...)
			r := d.Match(es)
			require.NotNil(t, r)
			assert.Equal(t, test.want, string(r.AppendKey(nil, test.domain, es)))
			assert.Equal(t, "x"+test.want, string(r.AppendKey([]byte("x"), test.domain, es)), "appends")
		})
	}
	override := &Rule{}
	assert.Equal(t, "d", string(override.AppendKey(nil, "d", nil)))
	assert.Equal(t, "d|r=api/%2A", string(override.AppendKey(nil, "d", entries("r", "api/*"))), "no pattern")
}

func TestAppendMetricKey(t *testing.T) {
	d := compile(t, strings.ReplaceAll(`domain: d
descriptors:
- {key: exact, value: v, DAY}
- {key: route, value: api/*, share_threshold: true, value_to_metric: true, DAY}
- {key: wv, value: a*, value_to_metric: true, DAY}
- {key: wa, value: "*", value_to_metric: true, DAY}
- {key: w, value: a*, DAY}
- {key: vm, value_to_metric: true, DAY, descriptors: [{key: l, DAY}]}
- {key: v, DAY}
- {key: det, detailed_metric: true, DAY, descriptors: [{key: in, value: a*, detailed_metric: true, value_to_metric: true, DAY}]}
- {key: sh, value: x*, share_threshold: true, DAY, descriptors: [{key: det, detailed_metric: true, DAY}, {key: plain, descriptors: [{key: vm, value_to_metric: true, DAY}]}]}
- {key: kw*, DAY}
- {key: kv*, value_to_metric: true, DAY}
- {key: ks*, share_threshold: true, DAY}
- {key: kx*, value: y*, DAY}
`, "DAY", tenAMinute)).Domain("d")
	for _, test := range []struct {
		name    string
		request []string
		want    string
	}{
		{"exact", []string{"exact", "v"}, "d.exact_v"},
		{"wildcard and share_threshold", []string{"route", "api/1"}, "d.route_api/*"},
		{"wildcard and value_to_metric", []string{"wv", "ab"}, "d.wv_ab"},
		{"wildcard and value_to_metric, empty", []string{"wa", ""}, "d.wa"},
		{"wildcard", []string{"w", "ab"}, "d.w_a*"},
		{"wildcard by its text", []string{"w", "a*"}, "d.w_a*"},
		{"any value and value_to_metric", []string{"vm", "x"}, "d.vm_x"},
		{"any value and value_to_metric, empty", []string{"vm", ""}, "d.vm"},
		{"value_to_metric of an inner level", []string{"vm", "x", "l", "y"}, "d.vm_x.l"},
		{"any value", []string{"v", "x"}, "d.v"},
		{"detailed_metric", []string{"det", "x"}, "d.det_x"},
		{"detailed_metric, empty", []string{"det", ""}, "d.det_"},
		{"detailed_metric of all entries", []string{"det", "x", "in", "ab"}, "d.det_x.in_ab"},
		{"detailed_metric shows shared patterns", []string{"sh", "xy", "det", "z"}, "d.sh_x*.det_z"},
		{"inner levels", []string{"sh", "xy", "plain", "p", "vm", "q"}, "d.sh_x*.plain.vm_q"},
		{"* in the key", []string{"kw1", "v"}, "d.kw1_kw*"},
		{"* in the key, empty value", []string{"kw1", ""}, "d.kw1_kw*"},
		{"* in the key and value_to_metric", []string{"kv1", "v"}, "d.kv1_v"},
		{"* in the key and value_to_metric, empty", []string{"kv1", ""}, "d.kv1"},
		{"* in the key and share_threshold", []string{"ks1", "v"}, "d.ks1_ks*"},
		{"* in key and value", []string{"kx1", "y1"}, "d.kx1_kx*_y*"},
	} {
		t.Run(test.name, func(t *testing.T) {
			es := entries(test.request...)
			r := d.Match(es)
			require.NotNil(t, r)
			assert.Equal(t, test.want, string(r.AppendMetricKey(nil, "d", es)))
		})
	}
}

func TestStaticMetricKey(t *testing.T) {
	d := compile(t, "domain: d\ndescriptors: [{key: a, value: x*, descriptors: [{key: b, "+tenAMinute+"}]}, {key: k*, value: v, "+tenAMinute+"}]").Domain("d")
	assert.Equal(t, "d.a_x*.b", d.Match(entries("a", "xy", "b", "c")).MetricKey)
	assert.Equal(t, "d.k*_v", d.Match(entries("k1", "v")).MetricKey)
}

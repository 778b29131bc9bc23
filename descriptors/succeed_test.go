package descriptors

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLimitsLearnWhatWasInTheirPlace(t *testing.T) {
	for _, test := range []struct {
		name     string
		old, now string // the descriptors of a domain
		past     [][]string
	}{
		{
			"another algorithm",
			`[{key: k, rate_limit: {unit: hour, requests_per_unit: 1}}]`,
			`[{key: k, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: sliding_log}}]`,
			[][]string{{"fw3600"}},
		},
		{
			"another number counts on",
			`[{key: k, rate_limit: {unit: hour, requests_per_unit: 1}}]`,
			`[{key: k, rate_limit: {unit: hour, requests_per_unit: 2}}]`,
			[][]string{nil},
		},
		{
			"of several limits, the one at the same place that is gone",
			`[{key: k, rate_limits: [{unit: hour, requests_per_unit: 1}, {unit: day, requests_per_unit: 1}]}]`,
			`[{key: k, rate_limits: [{unit: week, requests_per_unit: 1}, {unit: day, requests_per_unit: 1}, {unit: year, requests_per_unit: 1}]}]`,
			[][]string{{"fw3600"}, nil, nil},
		},
		{
			"of several limits, none at the same place that counts on elsewhere",
			`[{key: k, rate_limits: [{unit: hour, requests_per_unit: 1}, {unit: day, requests_per_unit: 1}]}]`,
			`[{key: k, rate_limits: [{unit: day, requests_per_unit: 1}, {unit: week, requests_per_unit: 1}, {unit: year, requests_per_unit: 1}]}]`,
			[][]string{nil, nil, nil},
		},
		{
			"of several limits, each its own",
			`[{key: k, rate_limits: [{unit: hour, requests_per_unit: 1}, {unit: day, requests_per_unit: 1}]}]`,
			`[{key: k, rate_limits: [{unit: hour, requests_per_unit: 1, algorithm: token_bucket}, {unit: day, requests_per_unit: 1}]}]`,
			[][]string{{"fw3600"}, nil},
		},
		{
			"of several limits, the one of the same window wherever it is",
			`[{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]`,
			`[{key: k, rate_limits: [{unit: hour, requests_per_unit: 1}, {unit: day, requests_per_unit: 1, algorithm: sliding_log}]}]`,
			[][]string{nil, {"fw86400"}},
		},
		{
			"of several limits, the one of the same window and scope",
			`[{key: k, rate_limits: [{unit: day, requests_per_unit: 1, scope: instance}, {unit: day, requests_per_unit: 1}]}]`,
			`[{key: k, rate_limit: {unit: day, requests_per_unit: 1, algorithm: sliding_log}}]`,
			[][]string{{"fw86400"}},
		},
		{
			"a new pattern",
			`[{key: k, rate_limit: {unit: hour, requests_per_unit: 1}}]`,
			`[{key: k, rate_limit: {unit: hour, requests_per_unit: 1}}, {key: k, value: v*, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: sliding_log}}]`,
			[][]string{{"fw3600"}},
		},
		{
			"a new pattern before a wider one",
			`[{key: k, rate_limit: {unit: day, requests_per_unit: 1}}, {key: k, value: "*", rate_limit: {unit: hour, requests_per_unit: 1}}]`,
			`[{key: k, value: v*, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: sliding_log}}, {key: k, value: "*", rate_limit: {unit: hour, requests_per_unit: 1}}]`,
			[][]string{{"fw3600"}},
		},
		{
			"a new pattern whose values share a counter",
			`[{key: k, rate_limit: {unit: hour, requests_per_unit: 1}}]`,
			`[{key: k, value: v*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: sliding_log}}]`,
			[][]string{nil},
		},
		{
			"a pattern that is gone, and what was there before it",
			`[{key: k, rate_limit: {unit: day, requests_per_unit: 1}}, {key: k, value: v*, rate_limit: {unit: hour, requests_per_unit: 1}}]`,
			`[{key: k, rate_limit: {unit: day, requests_per_unit: 1, algorithm: sliding_log}}]`,
			[][]string{{"fw3600", "fw86400"}},
		},
		{
			"a pattern that is gone, whose values shared a counter",
			`[{key: k, value: v*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 1}}]`,
			`[{key: k, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: sliding_log}}]`,
			[][]string{nil},
		},
		{
			"a new descriptor for one value",
			`[{key: k, rate_limit: {unit: hour, requests_per_unit: 1}}]`,
			`[{key: k, rate_limit: {unit: hour, requests_per_unit: 1}}, {key: k, value: v, rate_limit: {unit: day, requests_per_unit: 1}}]`,
			[][]string{{"fw3600"}},
		},
		{
			"none of a limit that was off, unlimited or not there",
			`[{key: k, rate_limit: {unit: hour, requests_per_unit: 1, enabled: false}}]`,
			`[{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]`,
			[][]string{nil},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			compile := func(text string) *Config {
				c, err := Compile([]File{{Name: "f", Data: []byte("domain: d\ndescriptors: " + text)}}, Options{})
				require.NoError(t, err)
				return c
			}
			old, now, at := compile(test.old), compile(test.now), time.Now()
			now.Succeed(nil, at)
			now.Succeed(old, at)
			rule := now.Domain("d").Match([]*ratelimitv3.RateLimitDescriptor_Entry{{Key: "k", Value: "v"}})
			require.Len(t, rule.Limits, len(test.past))
			for i, l := range rule.Limits {
				var tags []string
				for _, p := range l.Past(at.UnixMicro(), nil) {
					tags = append(tags, p.Tag())
				}
				assert.Equal(t, test.past[i], tags, "limit %d", i)
			}
		})
	}
}

func TestWhatWasSpentUnderADescriptorThatIsGoneIsKnown(t *testing.T) {
	const anyPerHour = "{key: k, rate_limit: {unit: hour, requests_per_unit: 10}, descriptors: [{key: l, rate_limit: {unit: hour, requests_per_unit: 5}}]}"
	at := time.Now()
	for _, test := range []struct {
		name     string
		old, now string
		kv       []string
		past     []string
	}{
		{"another algorithm", "{key: k, value: v, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: token_bucket}}", anyPerHour, []string{"k", "v"}, []string{"tb3600"}},
		{"another value", "{key: k, value: v, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: token_bucket}}", anyPerHour, []string{"k", "w"}, nil},
		{"the same counter", "{key: k, value: v, rate_limit: {unit: hour, requests_per_unit: 1}}", anyPerHour, []string{"k", "v"}, nil},
		{"no limit", "{key: k, value: v}", anyPerHour, []string{"k", "v"}, nil},
		{
			"a limit below it", "{key: k, value: v, descriptors: [{key: l, rate_limit: {unit: hour, requests_per_unit: 5, algorithm: sliding_log}}]}",
			anyPerHour,
			[]string{"k", "v", "l", "x"},
			[]string{"sl3600"},
		},
		{
			"to another limit for one value below it", "{key: k, value: v, descriptors: [{key: l, rate_limit: {unit: hour, requests_per_unit: 5, algorithm: sliding_log}}]}",
			"{key: k, descriptors: [{key: l, rate_limit: {unit: hour, requests_per_unit: 5, algorithm: sliding_log}}, {key: l, value: x, rate_limit: {unit: hour, requests_per_unit: 5}}]}",
			[]string{"k", "v", "l", "x"},
			[]string{"sl3600"},
		},
		{
			"a value below a value", "{key: k, value: v, descriptors: [{key: l, value: x, rate_limit: {unit: hour, requests_per_unit: 5, algorithm: sliding_log}}]}",
			anyPerHour,
			[]string{"k", "v", "l", "x"},
			[]string{"sl3600"},
		},
		{
			"to a pattern", "{key: k, value: v, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: token_bucket}}",
			"{key: k, value: v*, rate_limit: {unit: hour, requests_per_unit: 1}}",
			[]string{"k", "v"},
			[]string{"tb3600"},
		},
		{
			"to a pattern for keys", "{key: k, value: v, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: token_bucket}}",
			"{key: k*, rate_limit: {unit: hour, requests_per_unit: 1}}",
			[]string{"k", "v"},
			[]string{"tb3600"},
		},
		{
			"to a counter that others share", "{key: k, value: v, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: token_bucket}}",
			"{key: k, value: v*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 1}}",
			[]string{"k", "v"},
			nil,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := func(text string) *Config { return compile(t, "domain: d\ndescriptors: ["+text+"]") }
			old, now, plain := config(test.old), config(test.now), config(test.now)
			now.Succeed(old, at)
			pastOf := func(c *Config, at time.Time) []string {
				var tags []string
				for _, l := range c.Domain("d").Match(entries(test.kv...)).Limits {
					for _, p := range l.Past(at.UnixMicro(), nil) {
						tags = append(tags, p.Tag())
					}
				}
				return tags
			}
			assert.Equal(t, test.past, pastOf(now, at))

			// Nothing else tells that the descriptor was there.
			request := entries(test.kv...)
			was, is := plain.Domain("d").Match(request), now.Domain("d").Match(request)
			assert.Equal(t, was.Path, is.Path)
			assert.Equal(t, was.MetricKey, is.MetricKey)
			assert.Equal(t, string(was.AppendKey(nil, "d", request)), string(is.AppendKey(nil, "d", request)))
			assert.Equal(t, string(was.AppendMetricKey(nil, "d", request)), string(is.AppendMetricKey(nil, "d", request)))
			for _, write := range []func(*Config, io.Writer) error{(*Config).WriteTree, (*Config).WriteLines} {
				var want, got strings.Builder
				require.NoError(t, write(plain, &want))
				require.NoError(t, write(now, &got))
				assert.Equal(t, want.String(), got.String())
			}
			assert.Equal(t, plain.Rules(), now.Rules())
			assert.Equal(t, plain.ChangesFrom(old), now.ChangesFrom(old))

			// It lasts over further reloads as long as it matters, and no longer.
			soon := config(test.now)
			soon.Succeed(now, at.Add(time.Minute))
			assert.Equal(t, test.past, pastOf(soon, at.Add(time.Minute)))
			assert.Equal(t, Changes{}, soon.ChangesFrom(now))
			late := config(test.now)
			late.Succeed(soon, at.Add(24*time.Hour))
			assert.Nil(t, pastOf(late, at.Add(time.Minute)))
			assert.Len(t, late.Domain("d").root.nodes, len(plain.Domain("d").root.nodes))
		})
	}
}

func TestHeirsAreBounded(t *testing.T) {
	buckets := func(n int) *Config {
		var values strings.Builder
		for i := range n {
			fmt.Fprintf(&values, "- {key: k, value: v%d, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: token_bucket}}\n", i)
		}
		return compile(t, "domain: d\ndescriptors:\n"+values.String())
	}
	var below strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&below, "  - {key: l, value: v%d}\n", i)
	}
	now := compile(t, "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: hour, requests_per_unit: 1}\n  descriptors:\n"+below.String())
	now.Succeed(buckets(maxHeirs+10), time.Now())
	root := &now.Domain("d").root
	assert.Len(t, root.nodes, 1+maxHeirs)
	assert.Same(t, root.exact("k", "").children, root.exact("k", "v7").children, "what is below is shared")
}

func TestWhatWasSpentBelowOneValueChangesNoNames(t *testing.T) {
	base := compile(t, `
domain: d
descriptors:
  - key: a
    value: v*
    share_threshold: true
    rate_limit: {unit: hour, requests_per_unit: 5}
    descriptors: [{key: b, rate_limit: {unit: hour, requests_per_unit: 5}}]
`)
	at, below := override(t, "d|a=v1", `{"factor": 2}`), override(t, "d|a=v1|b", `{"algorithm": "sliding_log"}`)
	before, _ := base.With([]*Override{at, below})
	fresh, _ := base.With([]*Override{at})
	after, _ := base.With([]*Override{at})
	after.Succeed(before, time.Now())
	request := entries("a", "v1", "b", "y")
	was, is := fresh.Domain("d").Match(request), after.Domain("d").Match(request)
	assert.Equal(t, string(was.AppendKey(nil, "d", request)), string(is.AppendKey(nil, "d", request)))
	assert.Equal(t, was.Path, is.Path)
	assert.Equal(t, was.MetricKey, is.MetricKey)
	assert.Equal(t, fresh.Rules(), after.Rules())
	assert.True(t, is.Limits[0].HasPast())
	assert.Equal(t, Changes{Changed: []string{"d > a=v1 > b"}}, after.ChangesFrom(before))
}

package descriptors

import (
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

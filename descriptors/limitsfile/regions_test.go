package limitsfile

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/limit"
)

func TestScopeGlobalNeedsAGlobalRedis(t *testing.T) {
	for name, c := range map[string]struct {
		yaml      string
		hasGlobal bool
		want      limit.Scope
		err       string
	}{
		"with a global Redis":          {oneDescriptor("rate_limit: {unit: day, requests_per_unit: 9, scope: global}"), true, limit.Global, ""},
		"without a global Redis":       {oneDescriptor("rate_limit: {unit: day, requests_per_unit: 9, scope: global}"), false, limit.Region, ""},
		"no scope":                     {oneDescriptor("rate_limit: {unit: day, requests_per_unit: 9}"), true, limit.Region, ""},
		"scope region":                 {oneDescriptor("rate_limit: {unit: day, requests_per_unit: 9, scope: region}"), true, limit.Region, ""},
		"holds without a global Redis": {oneDescriptor("rate_limit: {algorithm: concurrency, requests_per_unit: 4, scope: global}"), false, limit.Region, ""},
		"holds": {
			oneDescriptor("rate_limit: {algorithm: concurrency, requests_per_unit: 4, scope: global}"), true, 0,
			"f:4:71: d > k: scope: got global, but regions can divide only limits with algorithm fixed_window, sliding_window or token_bucket, not concurrency; want scope: region, or another limit",
		},
		"a lease": {
			oneDescriptor("rate_limit: {unit: day, requests_per_unit: 900, lease: true, scope: global}"), true, 0,
			"f:4:73: d > k: scope: got global, but a limit can't have lease: true as well, because regions already buy hits in advance; want scope: region, or another limit",
		},
		"a quota": {
			oneDescriptor("quota: true\nrate_limit: {unit: minute, requests_per_unit: 100, algorithm: token_bucket, scope: global}"), true, 0,
			"f:4:12: d > k: quota has no meaning with scope: global, because a quota is divided in one region; want scope: region",
		},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := Parse([]File{{Name: "f", Data: []byte(c.yaml)}}, Options{HasGlobalRedis: c.hasGlobal})
			if c.err != "" {
				assert.EqualError(t, err, c.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.want, set.Domains[0].Descriptors[0].Limits[0].Scope)
		})
	}
}

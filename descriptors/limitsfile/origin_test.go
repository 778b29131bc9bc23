package limitsfile

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/base/fields"
)

func TestLimitNamesFieldsOfDefaultsAndOverrides(t *testing.T) {
	const file = `domain: d
descriptors:
- {key: k, RATE}
defaults: {algorithm: token_bucket, burst: 9, fallback_ratio: 0.5, enabled: true}
`
	for name, c := range map[string]struct {
		limit, patch               string
		wantDefaults, wantOverride []string
	}{
		"all defaults":               {"unit: day, requests_per_unit: 1", "", []string{"algorithm", "burst", "fallback_ratio", "enabled"}, nil},
		"given fields":               {"unit: day, requests_per_unit: 1, burst: 2, enabled: true", "", []string{"algorithm", "fallback_ratio"}, nil},
		"lease":                      {"unit: day, requests_per_unit: 1, lease: true", `{"lease_waste": 0.5}`, []string{"algorithm", "burst", "fallback_ratio", "enabled"}, []string{"lease_waste"}},
		"algorithm without burst":    {"unit: day, requests_per_unit: 1, algorithm: sliding_log", "", []string{"fallback_ratio", "enabled"}, nil},
		"unlimited":                  {"unlimited: true", "", []string{"enabled"}, nil},
		"override":                   {"unit: day, requests_per_unit: 1", `{"burst": 3, "requests_per_unit": 2}`, []string{"algorithm", "fallback_ratio", "enabled"}, []string{"requests_per_unit", "burst"}},
		"override by a factor":       {"unit: day, requests_per_unit: 1", `{"factor": 3}`, []string{"algorithm", "fallback_ratio", "enabled"}, []string{"requests_per_unit", "burst"}},
		"factor without burst":       {"unit: day, requests_per_unit: 1, algorithm: sliding_log", `{"factor": 3}`, []string{"fallback_ratio", "enabled"}, []string{"requests_per_unit"}},
		"override to unlimited":      {"unit: day, requests_per_unit: 1", `{"unlimited": true}`, []string{"enabled"}, []string{"unlimited"}},
		"fields that change nothing": {"unit: day, requests_per_unit: 1", `{"shadow_mode": true, "set_by": "a"}`, []string{"algorithm", "burst", "fallback_ratio", "enabled"}, nil},
		"new limit":                  {"", `{"unit": "day", "requests_per_unit": 4}`, []string{"algorithm", "burst", "fallback_ratio", "enabled"}, []string{"unit", "requests_per_unit"}},
	} {
		t.Run(name, func(t *testing.T) {
			rate := ""
			if c.limit != "" {
				rate = "rate_limit: {" + c.limit + "}"
			}
			set, err := Parse([]File{{Name: "f", Data: []byte(strings.Replace(file, "RATE", rate, 1))}}, Options{})
			require.NoError(t, err)
			d := set.Domains[0].Descriptors[0]
			if c.patch != "" {
				p, err := ParsePatch("d|k", []byte(c.patch))
				require.NoError(t, err)
				var problems fields.Problems
				d, problems = p.Apply(set.Domains[0], "d > k", d)
				require.Empty(t, problems)
			}
			l := d.Limits[0]
			assert.Equal(t, c.wantDefaults, l.DefaultFields())
			assert.Equal(t, c.wantOverride, l.OverrideFields())
			defaultsFile, line := set.Domains[0].DefaultsPlace()
			assert.Equal(t, "f:4", fields.FileLine(defaultsFile, line))
		})
	}
}

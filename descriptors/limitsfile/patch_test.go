package limitsfile

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPlainNumberMeansRequestsPerUnit(t *testing.T) {
	for value, want := range map[string]string{
		"":                      "value is not JSON",
		" ":                     "value is not JSON",
		"7":                     "",
		" 0 ":                   "",
		"00000000000000000005":  "", // 20 digits
		"000000000000000000005": "value is not JSON",
		"18446744073709551616":  "requests_per_unit: got 1.8446744073709552e+19, want a whole number",
		"-5":                    "value: got -5, want a JSON object",
	} {
		p, err := ParsePatch("d|k", []byte(value))
		if want == "" {
			assert.NoError(t, err, value)
			assert.True(t, p.root.field("requests_per_unit").isPresent(), value)
		} else {
			assert.ErrorContains(t, err, want, value)
		}
	}
}

// applyPatches returns the limits of a descriptor with overrides, or the problem of the first override that has one.
func applyPatches(t *testing.T, descriptor string, values ...string) (limits, problem string) {
	t.Helper()
	domain := parse(t, oneDescriptor(descriptor)).Domains[0]
	d := domain.Descriptors[0]
	for _, value := range values {
		p, err := ParsePatch("d|k", []byte(value))
		if err != nil {
			return "", err.Error()
		}
		changedDescriptor, problems := p.Apply(domain, "d > k", d)
		if len(problems) > 0 {
			return "", problems.Error()
		}
		d = changedDescriptor
	}
	return d.Summary(), ""
}

func TestOverridesChangeLimitsInTheirOrder(t *testing.T) {
	const twoLimits = "rate_limits: [{unit: minute, requests_per_unit: 5}, {unit: hour, requests_per_unit: 50}]"
	for name, c := range map[string]struct {
		descriptor string
		values     []string
		want       string
	}{
		"a factor":                          {tenAMinute, []string{`{"factor": 2.5}`}, "25 per minute"},
		"a factor up to the largest number": {"rate_limit: {unit: day, requests_per_unit: 1431655765}", []string{`{"factor": 3}`}, "4294967295 per day"},
		"a number over unlimited":           {tenAMinute, []string{`{"unlimited": true}`, `{"requests_per_unit": 7}`}, "7 per minute"},
		"a factor over unlimited":           {tenAMinute, []string{`{"unlimited": true}`, `{"factor": 2}`}, "20 per minute"},
		"a name over unlimited":             {tenAMinute, []string{`{"unlimited": true}`, `{"name": "n"}`}, "unlimited (named n)"},
		"unlimited that ends":               {tenAMinute, []string{`{"unlimited": true}`, `{"unlimited": false}`}, "10 per minute"},
		"items of several limits":           {twoLimits, []string{`{"rate_limits": [{}, {"requests_per_unit": 9}]}`}, "5 per minute and 9 per hour"},
		"one of several limits, unlimited":  {twoLimits, []string{`{"rate_limits": [{"unlimited": true}, {}]}`}, "unlimited and 50 per hour"},
	} {
		t.Run(name, func(t *testing.T) {
			limits, problem := applyPatches(t, c.descriptor, c.values...)
			require.Empty(t, problem)
			assert.Equal(t, c.want, limits)
		})
	}
}

func TestProblemOfAnOverrideHasARemedy(t *testing.T) {
	const twoLimits = "rate_limits: [{unit: minute, requests_per_unit: 5}, {unit: hour, requests_per_unit: 50}]"
	reason := func(n int) string { return `{"enabled": true, "reason": "` + strings.Repeat("x", n) + `"}` }
	for name, c := range map[string]struct{ descriptor, value, want string }{
		"no change":                        {tenAMinute, `{"reason": "test"}`, "override changes nothing; want rate_limits, shadow_mode, enforce, unit, "},
		"misspelt field":                   {tenAMinute, `{"factr": 2}`, "did you mean factor?"},
		"number beside items":              {twoLimits, `{"rate_limits": [{}, {}], "requests_per_unit": 5}`, "requests_per_unit is beside rate_limits; put it into the items of rate_limits"},
		"number for several limits":        {twoLimits, `{"requests_per_unit": 5}`, "the descriptor has 2 limits; put requests_per_unit into rate_limits"},
		"factor over the largest number":   {"rate_limit: {unit: day, requests_per_unit: 1431655766}", `{"factor": 3}`, "factor: the product with 1431655766 is over 4294967295"},
		"unlimited limit without a number": {"rate_limit: {unlimited: true}", `{"unlimited": false, "requests_per_unit": 5}`, "unit is missing; want millisecond"},
		"as many bytes as the bound":       {tenAMinute, `{"enabled": true}` + strings.Repeat(" ", MaxPatchBytes-17), ""},
		"too many bytes":                   {tenAMinute, `{"enabled": true}` + strings.Repeat(" ", MaxPatchBytes-16), "value is 65537 bytes; maximum is 65536"},
		"reason as long as the bound":      {tenAMinute, reason(MaxReasonBytes), ""},
		"too long reason":                  {tenAMinute, reason(MaxReasonBytes + 1), "reason: got 501 bytes, want at most 500"},
		"end that is no time":              {tenAMinute, `{"enabled": true, "expires_at": "tomorrow"}`, `expires_at: got "tomorrow", want a time such as 2030-01-31T12:00:00Z`},
		"end that is a time":               {tenAMinute, `{"enabled": true, "expires_at": "2030-01-31T12:00:00Z"}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, problem := applyPatches(t, c.descriptor, c.value)
			if c.want == "" {
				assert.Empty(t, problem)
				return
			}
			assert.Contains(t, problem, c.want)
			assert.NotContains(t, problem, "\n", "it is the only problem")
		})
	}
}

package limitsfile

import (
	"testing"

	"github.com/stretchr/testify/assert"
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

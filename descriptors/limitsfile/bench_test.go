package limitsfile

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkParse reads a file of 100,000 rules, like those of make bench-rules.
func BenchmarkParse(b *testing.B) {
	var text strings.Builder
	text.WriteString("domain: d\ndescriptors:\n")
	for i := range 100_000 {
		fmt.Fprintf(&text, "  - key: k\n    value: v%d\n    rate_limit:\n      unit: day\n      requests_per_unit: 9\n", i)
	}
	files := []File{{Name: "limits.yaml", Data: []byte(text.String())}}
	b.ReportAllocs()
	for b.Loop() {
		_, err := Parse(files, Options{})
		require.NoError(b, err)
	}
}

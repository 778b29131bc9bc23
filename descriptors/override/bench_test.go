package override

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seed-81f232ab/rls/descriptors"
)

// BenchmarkApply measures an update of one override: applying it, and compiling the result.
func BenchmarkApply(b *testing.B) {
	for _, rules := range []int{10, 100_000} {
		b.Run(fmt.Sprint(rules), func(b *testing.B) {
			var text strings.Builder
			text.WriteString("domain: d\ndescriptors:\n")
			for i := range rules {
				fmt.Fprintf(&text, "- {key: path, value: /api/v1/items/%06d, rate_limit: {unit: second, requests_per_unit: 5}}\n", i)
			}
			base := compile(b, text.String()).set
			o := parseOverride(b, fmt.Sprintf("d|path=/api/v1/items/%06d", rules/2), `{"factor": 10}`)
			b.ReportAllocs()
			for b.Loop() {
				set, outcomes := apply(base, []*Override{o})
				if outcomes[0].Problem != nil {
					b.Fatal(outcomes[0].Problem)
				}
				descriptors.Compile(set)
			}
		})
	}
}

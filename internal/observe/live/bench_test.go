package live

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// BenchmarkSecond measures what a second of sampling costs with 1,000 rules that all have
// hits. A second without viewers reads the counts of rules each fifth time.
func BenchmarkSecond(b *testing.B) {
	for name, hasViewers := range map[string]bool{"without viewers": false, "with viewers": true} {
		b.Run(name, func(b *testing.B) {
			fixture := newFixture(b, nil)
			var limits strings.Builder
			limits.WriteString("domain: shop\ndescriptors:\n")
			for i := range 1000 {
				fmt.Fprintf(&limits, "  - {key: k%d, rate_limit: {unit: minute, requests_per_unit: 1}}\n", i)
				fixture.counts = append(fixture.counts, counts(fmt.Sprintf("shop > k%d", i), "", 0, 0, 0, 0))
			}
			fixture.load(limits.String())
			for i := range 5000 {
				fixture.call(fmt.Sprintf("k%d=%d", i%1000, i))
			}
			now := time.Now()
			for b.Loop() {
				for i := range fixture.counts {
					fixture.counts[i].WithinLimit += uint64(i)
					fixture.counts[i].OverLimit += 5
				}
				now = now.Add(time.Second)
				fixture.viewedAt = time.Time{}
				if hasViewers {
					fixture.viewedAt = now
				}
				fixture.takeSample(now)
				if hasViewers {
					fixture.snapshot = nil
					encode(fixture.Snapshot())
				}
			}
		})
	}
}

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
			r := newFixture(b, nil)
			var limits strings.Builder
			limits.WriteString("domain: shop\ndescriptors:\n")
			for i := range 1000 {
				fmt.Fprintf(&limits, "  - {key: k%d, rate_limit: {unit: minute, requests_per_unit: 1}}\n", i)
				r.counts = append(r.counts, counts(fmt.Sprintf("shop > k%d", i), "", 0, 0, 0, 0))
			}
			r.load(limits.String())
			for i := range 5000 {
				r.call(fmt.Sprintf("k%d=%d", i%1000, i))
			}
			now := time.Now()
			for b.Loop() {
				for i := range r.counts {
					r.counts[i].WithinLimit += uint64(i)
					r.counts[i].OverLimit += 5
				}
				now = now.Add(time.Second)
				r.viewedAt = time.Time{}
				if hasViewers {
					r.viewedAt = now
				}
				r.takeSample(now)
				if hasViewers {
					r.snapshot = nil
					encode(r.Snapshot())
				}
			}
		})
	}
}

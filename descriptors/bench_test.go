package descriptors

import (
	"fmt"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

// siblings makes a domain of n rules, and requests that meet some of them.
func siblings(n, requested int, value func(i int) string, met func(i int) string) (*Domain, [][]*ratelimitv3.RateLimitDescriptor_Entry) {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range n {
		fmt.Fprintf(&b, "- {key: path, value: %q, rate_limit: {unit: second, requests_per_unit: 5}}\n", value(i))
	}
	c, err := Compile([]File{{"bench.yaml", []byte(b.String())}}, Options{})
	if err != nil {
		panic(err)
	}
	var requests [][]*ratelimitv3.RateLimitDescriptor_Entry
	for i := range requested {
		requests = append(requests, entries("path", met(i*7919%n)))
	}
	return c.Domain("d"), requests
}

func benchmarkMatch(b *testing.B, d *Domain, requests [][]*ratelimitv3.RateLimitDescriptor_Entry, want bool) {
	for _, r := range requests {
		if (d.Match(r) != nil) != want {
			b.Fatalf("%v: matched is not %v", r, want)
		}
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		d.Match(requests[i])
		if i++; i == len(requests) {
			i = 0
		}
	}
}

// With few requests in turn the index stays in the processor's caches; with many
// at random the larger index doesn't, which costs some four misses.
func BenchmarkMatchExact(b *testing.B) {
	path := func(i int) string { return fmt.Sprintf("/api/v1/items/%06d", i) }
	for _, n := range []int{10, 1000, 100_000} {
		for _, requested := range []int{1024, 65536} {
			b.Run(fmt.Sprintf("%d/requests=%d", n, requested), func(b *testing.B) {
				d, requests := siblings(n, requested, path, path)
				benchmarkMatch(b, d, requests, true)
			})
		}
	}
}

func BenchmarkMatchWildcard(b *testing.B) {
	for _, bench := range []struct {
		name, pattern, met string
		want               bool
	}{
		{"prefix", "%03d/*", "%03d/x", true},
		{"common-prefix", "/api/v1/service-%04d/*", "/api/v1/service-%04d/items", true},
		{"common-prefix-miss", "/api/v1/service-%04d/*", "/api/v1/service-x%04d/items", false},
		{"suffix", "*-%04d.example.com", "www-%04d.example.com", true},
		{"middle", "*/service-%04d/*", "/api/v1/service-%04d/items", true},
		{"middle-miss", "*/service-%04d/*", "/api/v1/srv-%04d/items", false},
		{"two-stars", "/api/*/service-%04d/*", "/api/v1/service-%04d/items", true},
	} {
		for _, n := range []int{1, 10, 1000} {
			b.Run(fmt.Sprintf("%s/%d", bench.name, n), func(b *testing.B) {
				value := func(i int) string { return fmt.Sprintf(bench.pattern, i) }
				met := func(i int) string { return fmt.Sprintf(bench.met, i) }
				d, requests := siblings(n, 1024, value, met)
				benchmarkMatch(b, d, requests, bench.want)
			})
		}
	}
}

func BenchmarkAppendKey(b *testing.B) {
	c := compile(b, "domain: shop\ndescriptors: [{key: service, value: checkout, descriptors: [{key: path, rate_limit: {unit: second, requests_per_unit: 5}}]}]")
	request := entries("service", "checkout", "path", "/api/v1/items")
	rule := c.Domain("shop").Match(request)
	var key []byte
	b.ReportAllocs()
	for b.Loop() {
		rule := c.Domain("shop").Match(request)
		key = rule.AppendKey(key[:0], "shop", request)
	}
	_ = rule
}

func BenchmarkCompile(b *testing.B) {
	var y strings.Builder
	y.WriteString("domain: d\ndescriptors:\n")
	for i := range 10_000 {
		fmt.Fprintf(&y, "  - key: path\n    value: /api/v1/items/%06d\n    rate_limit:\n      unit: minute\n      requests_per_unit: 10\n", i)
	}
	data := []byte(y.String())
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Compile([]File{{"bench.yaml", data}}, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

// What an override costs when it comes: a copy of all rules.
func BenchmarkWith(b *testing.B) {
	for _, n := range []int{10, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			value := func(i int) string { return fmt.Sprintf("/api/v1/items/%06d", i) }
			d, _ := siblings(n, 0, value, value)
			c := &Config{domains: map[string]*Domain{d.Name: d}, order: []*Domain{d}}
			o, err := ParseOverride("d|path="+value(n/2), []byte(`{"factor": 10}`))
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, out := c.With([]*Override{o}); len(out[0].Problems) > 0 {
					b.Fatal(out[0].Problems)
				}
			}
		})
	}
}

package descriptors

import (
	"fmt"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// newRulesAndRequests returns a domain of n rules, and requests with the values of random rules. value returns the value of
// rule i, and requestValue returns the value of a request for rule i.
func newRulesAndRequests(n, requestCount int, value func(i int) string, requestValue func(i int) string) (*Domain, [][]*ratelimitv3.RateLimitDescriptor_Entry) {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range n {
		fmt.Fprintf(&b, "- {key: path, value: %q, rate_limit: {unit: second, requests_per_unit: 5}}\n", value(i))
	}
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "bench.yaml", Data: []byte(b.String())}}, limitsfile.Options{})
	if err != nil {
		panic(err)
	}
	c := Compile(set)
	var requests [][]*ratelimitv3.RateLimitDescriptor_Entry
	for i := range requestCount {
		requests = append(requests, entries("path", requestValue(i*7919%n)))
	}
	return c.Domain("d"), requests
}

// benchmarkMatch measures Match of requests. If hasRule is true, each request must match a rule, otherwise no request.
func benchmarkMatch(b *testing.B, d *Domain, requests [][]*ratelimitv3.RateLimitDescriptor_Entry, hasRule bool) {
	for _, r := range requests {
		if (d.Match(r) != nil) != hasRule {
			b.Fatalf("%v: a rule matches: got %v, want %v", r, !hasRule, hasRule)
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

// With few requests, the index stays in the caches of the processor. With many random requests, a large
// index does not fit into the caches, so each match costs about four cache misses.
func BenchmarkMatchExact(b *testing.B) {
	value := func(i int) string { return fmt.Sprintf("/api/v1/items/%06d", i) }
	for _, n := range []int{10, 1000, 100_000} {
		for _, requestCount := range []int{1024, 65536} {
			b.Run(fmt.Sprintf("%d/requests=%d", n, requestCount), func(b *testing.B) {
				d, requests := newRulesAndRequests(n, requestCount, value, value)
				benchmarkMatch(b, d, requests, true)
			})
		}
	}
}

func BenchmarkMatchWildcard(b *testing.B) {
	for _, bench := range []struct {
		name, pattern, request string
		want                   bool
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
				requestValue := func(i int) string { return fmt.Sprintf(bench.request, i) }
				d, requests := newRulesAndRequests(n, 1024, value, requestValue)
				benchmarkMatch(b, d, requests, bench.want)
			})
		}
	}
}

func BenchmarkAppendKey(b *testing.B) {
	c := compileFiles(b, "domain: shop\ndescriptors: [{key: service, value: checkout, descriptors: [{key: path, rate_limit: {unit: second, requests_per_unit: 5}}]}]")
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
	var text strings.Builder
	text.WriteString("domain: d\ndescriptors:\n")
	for i := range 10_000 {
		fmt.Fprintf(&text, "  - key: path\n    value: /api/v1/items/%06d\n    rate_limit:\n      unit: minute\n      requests_per_unit: 10\n", i)
	}
	data := []byte(text.String())
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		set, err := limitsfile.Parse([]limitsfile.File{{Name: "bench.yaml", Data: data}}, limitsfile.Options{})
		if err != nil {
			b.Fatal(err)
		}
		Compile(set)
	}
}

// Package limitsgen draws random limits files, and requests that often match them. It helps
// tests only.
package limitsgen

import (
	"fmt"
	"slices"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// Domain is the domain of the drawn limits files.
const Domain = "d"

// The fields that a drawn descriptor or limit can have. A draw takes one text of a field, or no text.
var (
	matchFields = []string{
		"", "", "value: x", `value: ""`, "value: y", "value: 10.0.0.1", "value: x*", `value: "*y"`, `value: "*"`,
		"prefix: x", "in: [x, y, 10.0.0.1]", "cidr: [10.0.0.0/8]", "regex: x+y?", `cel: value == "x"`, `cel: 'entries["a"] == value'`,
		"not: {prefix: x}", "not: {cidr: [10.0.0.0/8]}",
	}
	ruleFields = [][]string{
		{"shadow_mode: true"},
		{"quota_mode: true"},
		{"share_threshold: true"},
		{"refunds: false"},
		{"enforce: 50", "enforce: 0.001"},
		{"max_hits: 1", "max_hits: 3", "max_hits: 4294967295"},
		{"detailed_metric: true"},
		{"value_to_metric: true"},
		{"metadata: {a: 1, b: [x, ~]}"},
		{`denial: {message: "no"}`, `denial: {body: "{}", headers: {x-a: "1"}}`},
	}
	limitFields = [][]string{
		{"unit_multiplier: 2", "unit_multiplier: 15", "unit_multiplier: 400"},
		{"timezone: Europe/Berlin", "timezone: Pacific/Chatham"},
		{"burst: 1", "burst: 7", "burst: 4294967295"},
		{"scope: instance"},
		{"on_backend_failure: allow", "on_backend_failure: deny"},
		{"fallback_ratio: 0.5"},
		{"charge_denied: true", "charge_denied: false"},
		{"lease: true", "lease: true, lease_waste: 0.5"},
		{"enabled: false"},
		{"name: n0", "name: n1", "name: n2"},
		{"replaces: [{name: n0}]", "replaces: [{name: n1}, {name: n2}]"},
	}
	algorithms = []string{
		"", ", algorithm: fixed_window", ", algorithm: sliding_window", ", algorithm: sliding_log", ", algorithm: token_bucket",
		", algorithm: first_hit_window", ", algorithm: concurrency, hold: 30s",
	}
	units    = []string{"millisecond", "second", "minute", "hour", "day", "week", "month", "year"}
	requests = []string{"0", "1", "2", "3", "10", "4294967295"}
	defaults = []string{
		"", "", "", "\ndefaults: {algorithm: token_bucket}", "\ndefaults: {enabled: false}", "\ndefaults: {timezone: Asia/Kolkata}",
		"\ndefaults: {charge_denied: false, scope: instance}",
	}
)

// File draws a limits file that has no mistakes.
func File(t *rapid.T) string {
	fileStart := "domain: " + Domain + rapid.SampledFrom(defaults).Draw(t, "defaults") + "\ndescriptors: "
	return fileStart + drawDescriptors(t, fileStart, 2)
}

// isValid reports whether text is a limits file without mistakes.
func isValid(text string) bool {
	_, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(text)}}, limitsfile.Options{})
	return err == nil
}

// drawDescriptors draws a list of descriptors. fileStart is the file before the list. A drawn descriptor
// with a mistake is left out.
func drawDescriptors(t *rapid.T, fileStart string, depth int) string {
	var items []string
	for range rapid.IntRange(1, 4).Draw(t, "descriptors") {
		fields := []string{"key: " + rapid.SampledFrom([]string{"a", "a", "b", "ab", `"a*"`, `"*"`}).Draw(t, "key")}
		if match := rapid.SampledFrom(matchFields).Draw(t, "match"); match != "" {
			fields = append(fields, match)
		}
		fields = append(fields, drawFields(t, ruleFields)...)
		if limits := drawLimits(t); limits != "" {
			fields = append(fields, limits)
		}
		if depth > 1 && rapid.Bool().Draw(t, "children") {
			fields = append(fields, "descriptors: "+drawDescriptors(t, fileStart, depth-1))
		}
		if longerList := append(slices.Clip(items), "{"+strings.Join(fields, ", ")+"}"); isValid(fileStart + listOf(longerList)) {
			items = longerList
		}
	}
	return listOf(items)
}

func listOf(items []string) string { return "[" + strings.Join(items, ", ") + "]" }

// drawFields draws about a sixth of the fields, each with one of its texts.
func drawFields(t *rapid.T, fields [][]string) []string {
	var drawnFields []string
	for _, texts := range fields {
		texts = append(make([]string, 5*len(texts)), texts...)
		if text := rapid.SampledFrom(texts).Draw(t, "field"); text != "" {
			drawnFields = append(drawnFields, text)
		}
	}
	return drawnFields
}

// drawLimits draws no limit, an unlimited limit, or up to three limits.
func drawLimits(t *rapid.T) string {
	count := rapid.IntRange(0, 4).Draw(t, "limits")
	if count == 4 {
		return "rate_limits: [{unlimited: true}]"
	}
	var limits []string
	for range count {
		algorithm := rapid.SampledFrom(algorithms).Draw(t, "algorithm")
		text := "requests_per_unit: " + rapid.SampledFrom(requests).Draw(t, "requests") + algorithm
		if !strings.Contains(algorithm, "hold") {
			text += ", unit: " + rapid.SampledFrom(units).Draw(t, "unit")
		}
		for _, field := range drawFields(t, limitFields) {
			if isValid(fmt.Sprintf("domain: d\ndescriptors: [{key: a, rate_limits: [{%s, %s}]}]", text, field)) {
				text += ", " + field
			}
		}
		if longerList := append(slices.Clip(limits), "{"+text+"}"); isValid("domain: d\ndescriptors: [{key: a, rate_limits: " + listOf(longerList) + "}]") {
			limits = longerList
		}
	}
	if len(limits) == 0 {
		return ""
	}
	return "rate_limits: " + listOf(limits)
}

// Entries draws the entries of a descriptor of a request.
func Entries(t *rapid.T) []*ratelimitv3.RateLimitDescriptor_Entry {
	var entries []*ratelimitv3.RateLimitDescriptor_Entry
	for range rapid.SampledFrom([]int{1, 1, 1, 1, 2, 2, 3}).Draw(t, "entries") {
		entries = append(entries, &ratelimitv3.RateLimitDescriptor_Entry{
			Key:   rapid.SampledFrom([]string{"a", "a", "a", "a", "b", "b", "ab", "c", "A"}).Draw(t, "key"),
			Value: rapid.SampledFrom([]string{"x", "x", "x", "y", "xy", "", "X", " x", "xyz", "10.0.0.1", "é\x1b"}).Draw(t, "value"),
		})
	}
	return entries
}

// Hits draws a number of hits: mostly a few, and sometimes a peek, a refund or a huge number.
func Hits(t *rapid.T) int64 {
	return rapid.SampledFrom([]int64{1, 1, 1, 1, 2, 3, 0, -1, -2, 1 << 31, 1 << 62, -1 << 40}).Draw(t, "hits")
}

// Request draws a request, which the service can refuse.
func Request(t *rapid.T) *rlsv3.RateLimitRequest {
	req := &rlsv3.RateLimitRequest{Domain: rapid.SampledFrom([]string{Domain, Domain, Domain, Domain, "other"}).Draw(t, "domain")}
	for range rapid.IntRange(1, 3).Draw(t, "descriptors of the request") {
		hits := Hits(t)
		descriptor := &ratelimitv3.RateLimitDescriptor{Entries: Entries(t), IsNegativeHits: hits < 0}
		if hits != 1 {
			descriptor.HitsAddend = wrapperspb.UInt64(uint64(max(hits, -hits)))
		}
		if rapid.IntRange(0, 9).Draw(t, "own limit") == 0 {
			descriptor.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{
				RequestsPerUnit: 2, Unit: typev3.RateLimitUnit(rapid.IntRange(-1, 8).Draw(t, "unit")),
			}
		}
		req.Descriptors = append(req.Descriptors, descriptor)
	}
	return req
}

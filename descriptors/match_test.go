package descriptors

import (
	"fmt"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/limit"
)

// matchedPath returns the path of the rule that a request matches, without the domain. It returns "" if no rule matches.
func matchedPath(d *Domain, keysAndValues ...string) string {
	r := d.Match(entries(keysAndValues...))
	if r == nil {
		return ""
	}
	return strings.TrimPrefix(r.Path, d.Name+" > ")
}

func TestMatchReturnsTheRuleOfTheEntries(t *testing.T) {
	const day = "rate_limit: {unit: day, requests_per_unit: 1}"
	tree := strings.ReplaceAll(`domain: d
descriptors:
- {key: service, DAY, descriptors: [
    {key: path, value: /a, DAY},
    {key: path, DAY},
    {key: method, descriptors: [{key: user, DAY}]}]}
- {key: service, value: internal}
- {key: service, value: gold, descriptors: [{key: plan, DAY}]}
- {key: w, value: foo*, DAY}
- {key: w, value: foobar*, DAY}
- {key: w, value: fooexact, DAY}
- {key: w, value: "*", descriptors: [{key: x, DAY}]}
- {key: w, DAY}
- {key: m, value: "a*b*c", DAY}
- {key: n, value: "*end", DAY}
- {key: n, value: "*in*", DAY}
- {key: l, value: a*, DAY}
- {key: l, value: ab*, DAY}
- {key: kw*, DAY}
- {key: kwx, value: v*, DAY}
- {key: kw*, value: v1, DAY}
- {key: "*tail", value: x, DAY}
- {key: a, value: b_c, DAY}
- {key: e_, DAY}
- {key: off, rate_limit: {unit: day, requests_per_unit: 1, enabled: false}}
`, "DAY", day)
	d := compileFiles(t, tree).Domain("d")

	for _, test := range []struct {
		name    string
		request []string
		want    string
	}{
		{"no entries", nil, ""},
		{"unknown key", []string{"nope", "x"}, ""},
		{"any value", []string{"service", "x"}, "service"},
		{"an empty value matches any value", []string{"service", ""}, "service"},
		{"a child matches requests of its depth", []string{"service", "x", "path", "/a"}, "service > path=/a"},
		{"any value if no exact value matches", []string{"service", "x", "path", "/b"}, "service > path"},
		{"a request deeper than the rules", []string{"service", "x", "path", "/a", "more", "z"}, ""},
		{"a request shallower than the rule", []string{"service", "x", "method", "GET"}, ""},
		{"a request as deep as the rule", []string{"service", "x", "method", "GET", "user", "u"}, "service > method > user"},
		{"the order of entries matters", []string{"path", "/a", "service", "x"}, ""},
		{"a rule without a limit", []string{"service", "internal"}, ""},
		{"no backtracking from an exact match", []string{"service", "internal", "path", "/a"}, ""},
		{"no backtracking if no child matches", []string{"service", "gold", "path", "/a"}, ""},
		{"a child of the exact match", []string{"service", "gold", "plan", "p"}, "service=gold > plan"},

		{"wildcards in file order, not by length", []string{"w", "foobar1"}, "w=foo*"},
		{"* matches the empty text", []string{"w", "foo"}, "w=foo*"},
		{"an exact value comes before wildcards", []string{"w", "fooexact"}, "w=fooexact"},
		{"a value with the text of a pattern is an exact match", []string{"w", "foobar*"}, "w=foobar*"},
		{"no backtracking from a wildcard", []string{"w", "other"}, ""},
		{"a child of a wildcard", []string{"w", "other", "x", "y"}, "w=* > x"},
		{"* matches the empty value", []string{"w", "", "x", "y"}, "w=* > x"},
		{"wildcards are case-sensitive", []string{"l", "A1"}, ""},
		{"the first of two wildcards", []string{"l", "ab1"}, "l=a*"},
		{"* in the middle", []string{"m", "a--b--c"}, "m=a*b*c"},
		{"* in the middle matches the empty text", []string{"m", "abc"}, "m=a*b*c"},
		{"a pattern matches from the start of the value", []string{"m", "xabc"}, ""},
		{"a pattern matches to the end of the value", []string{"m", "abcx"}, ""},
		{"the parts of a pattern match different parts of the value", []string{"m", "ac"}, ""},
		{"* at the start", []string{"n", "the end"}, "n=*end"},
		{"* at both ends", []string{"n", "begin"}, "n=*in*"},

		{"* in the key", []string{"kw1", "any"}, "kw*"},
		{"* in the key matches the empty text", []string{"kw", ""}, "kw*"},
		{"wildcards in keys and values in file order", []string{"kwx", "v2"}, "kw*"},
		{"a key with the text of a * key is an exact match", []string{"kw*", "v1"}, "kw*=v1"},
		{"a * key with a value", []string{"retail", "x"}, "*tail=x"},
		{"a * key with another value", []string{"retail", "y"}, ""},

		{"keys and values are compared separately", []string{"a_b", "c"}, ""},
		{"the value of a key with _", []string{"a", "b_c"}, "a=b_c"},
		{"wildcards compare keys and values separately", []string{"w_foo", "x"}, ""},
		{"an empty value does not join the key", []string{"e", ""}, ""},

		{"limits that are off", []string{"off", "x"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			assert.Equal(t, test.want, matchedPath(d, test.request...))
		})
	}
}

func TestMatchAcceptsUnusualRequests(t *testing.T) {
	d := compileFiles(t, oneDescriptor("value: a*\n"+tenAMinute)).Domain("d")
	assert.Nil(t, d.Match([]*ratelimitv3.RateLimitDescriptor_Entry{nil}))
	assert.Nil(t, d.Match(make([]*ratelimitv3.RateLimitDescriptor_Entry, 10_000)))
	assert.NotNil(t, d.Match(entries("k", "a"+strings.Repeat("x", 1<<20))))
	assert.Nil(t, compileFiles(t, "domain: d").Domain("d").Match(entries("k", "v")))
}

// With so many wildcards, filters rule out most wildcards before a comparison.
func TestMatchFindsTheFirstOfManyWildcards(t *testing.T) {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range 300 {
		fmt.Fprintf(&b, "- {key: path, value: /api/v1/service-%04d/*, %s}\n", i, tenAMinute)
		fmt.Fprintf(&b, "- {key: '*-%04d', value: '*x*', %s}\n", i, tenAMinute)
	}
	b.WriteString("- {key: path, value: '*', " + tenAMinute + "}\n")
	b.WriteString("- {key: 'p*', value: 'y*', " + tenAMinute + "}\n")
	d := compileFiles(t, b.String()).Domain("d")
	for i := range 300 {
		assert.Equal(t, fmt.Sprintf("path=/api/v1/service-%04d/*", i), matchedPath(d, "path", fmt.Sprintf("/api/v1/service-%04d/items", i)))
		assert.Equal(t, fmt.Sprintf("*-%04d=*x*", i), matchedPath(d, fmt.Sprintf("key-%04d", i), "axb"))
	}
	assert.Equal(t, "path=*", matchedPath(d, "path", "/api/v1/service-0300/"))
	assert.Equal(t, "path=*", matchedPath(d, "path", ""))
	assert.Equal(t, "path=*", matchedPath(d, "path", strings.Repeat("long", 1000)))
	assert.Equal(t, "p*=y*", matchedPath(d, "pat", "y"))
	assert.Equal(t, "", matchedPath(d, "key-0300", "x"))
}

func TestMatchDoesNotAllocate(t *testing.T) {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range 20 {
		fmt.Fprintf(&b, "- {key: k, value: 'a*%d', descriptors: [{key: l, %s}]}\n", i, tenAMinute)
	}
	d := compileFiles(t, b.String()).Domain("d")
	request := entries("k", "ab19", "l", "v")
	key := make([]byte, 0, 64)
	allocs := testing.AllocsPerRun(100, func() {
		key = d.Match(request).AppendKey(key[:0], "d", request)
	})
	assert.Zero(t, allocs)
}

func TestRuleHasTheFieldsOfTheFile(t *testing.T) {
	c := compileFiles(t, `
domain: d
defaults: {algorithm: token_bucket, burst: 7, scope: instance, on_backend_failure: deny, fallback_ratio: 0.25, charge_denied: true, lease: true, lease_waste: 0.02}
descriptors:
- key: a
  shadow_mode: true
  quota_mode: true
  metadata: {tier: gold, n: 5}
  rate_limits:
  - {unit: second, requests_per_unit: 10, name: fast, replaces: [{name: x}, {name: y}]}
  - {unit: day, unit_multiplier: 2, requests_per_unit: 1000, algorithm: sliding_log, scope: global, on_backend_failure: local, fallback_ratio: 1, charge_denied: false}
  - {unit: hour, requests_per_unit: 50, enabled: false}
  - {unit: minute, requests_per_unit: 100, scope: global, algorithm: fixed_window}
- {key: b, rate_limit: {unlimited: true, name: free, replaces: [{name: fast}]}}
`)
	r := c.Domain("d").Match(entries("a", "1"))
	require.NotNil(t, r)
	assert.Equal(t, "d > a", r.Path)
	assert.True(t, r.ShadowMode && r.QuotaMode)
	assert.Equal(t, map[string]any{"tier": "gold", "n": 5.0}, r.Metadata.AsMap())
	require.Len(t, r.Limits, 3, "a limit that is off is left out")

	fastLimit := r.Limits[0]
	assert.Equal(t, limit.Spec{
		Algorithm: limit.TokenBucket, Requests: 10, Unit: limit.Second, Multiplier: 1, Burst: 7,
		ChargeDenied: true, Scope: limit.Instance, OnBackendFailure: limit.FailDeny, FallbackRatio: 0.25,
	}, fastLimit.Spec)
	assert.Equal(t, "fast", fastLimit.Name)
	assert.Equal(t, []string{"x", "y"}, fastLimit.Replaces)
	assert.Equal(t, "fast", fastLimit.Response.Name)
	assert.EqualValues(t, 10, fastLimit.Response.RequestsPerUnit)
	assert.Equal(t, "SECOND", fastLimit.Response.Unit.String())
	assert.Nil(t, fastLimit.Response.UnitMultiplier)

	slowLimit := r.Limits[1]
	assert.Equal(t, limit.Spec{
		Algorithm: limit.SlidingLog, Requests: 1000, Unit: limit.Day, Multiplier: 2,
		OnBackendFailure: limit.FailLocal, FallbackRatio: 1,
	}, slowLimit.Spec)
	assert.EqualValues(t, 2, slowLimit.Response.UnitMultiplier.GetValue())
	assert.Equal(t, "DAY", slowLimit.Response.Unit.String())

	leasedLimit := r.Limits[2]
	assert.True(t, leasedLimit.Lease)
	assert.Equal(t, int64(2), leasedLimit.MaxLeasePermits())

	freeLimit := c.Domain("d").Match(entries("b", "1")).Limits[0]
	assert.True(t, freeLimit.Unlimited)
	assert.Nil(t, freeLimit.Limit)
	assert.Nil(t, freeLimit.Response)
	assert.Equal(t, []string{"fast"}, freeLimit.Replaces)
}

func TestDefaultsApplyOnlyWhereTheyHaveMeaning(t *testing.T) {
	c := compileFiles(t, `
domain: d
defaults: {enabled: false, burst: 9}
descriptors:
- {key: off, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: "on", rate_limit: {unit: day, requests_per_unit: 1, enabled: true}}
- {key: bucket, rate_limit: {unit: day, requests_per_unit: 1, enabled: true, algorithm: token_bucket}}
`)
	d := c.Domain("d")
	assert.Nil(t, d.Match(entries("off", "")))
	assert.EqualValues(t, 0, d.Match(entries("on", "")).Limits[0].Burst, "burst is for token buckets")
	assert.True(t, d.Match(entries("on", "")).Limits[0].ChargeDenied, "fixed windows charge denied hits")
	assert.EqualValues(t, 9, d.Match(entries("bucket", "")).Limits[0].Burst)
	assert.False(t, d.Match(entries("bucket", "")).Limits[0].ChargeDenied, "other algorithms do not charge denied hits")
}

func TestResponseHasTheUnitOfTheLimit(t *testing.T) {
	for _, unit := range limit.UnitNames() {
		c := compileFiles(t, oneDescriptor("rate_limit: {unit: "+unit+", unit_multiplier: 10, requests_per_unit: 1}"))
		r := c.Domain("d").Match(entries("k", "v"))
		want := strings.ToUpper(unit)
		if unit == limit.Millisecond.String() {
			want = "UNKNOWN" // Envoy has no milliseconds
		}
		assert.Equal(t, want, r.Limits[0].Response.Unit.String())
	}
}

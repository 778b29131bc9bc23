package service

import (
	"strings"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/limit"
)

const denialLimits = `
domain: d
descriptors:
  - {key: a, denial: {message: slow down, headers: {X-Rule: a}}, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: b, denial: {body: '{"b":1}', headers: {content-type: application/json}}, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: pass, denial: {message: never}, rate_limit: {unit: minute, requests_per_unit: 100}}
  - {key: plain, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: shadow, shadow_mode: true, denial: {message: never}, rate_limit: {unit: minute, requests_per_unit: 0}}
`

// headerTexts returns the headers of resp as "name: value".
func headerTexts(resp *rlsv3.RateLimitResponse) []string {
	var texts []string
	for _, h := range resp.ResponseHeadersToAdd {
		texts = append(texts, h.Key+": "+h.Value)
	}
	return texts
}

func TestDenialHasBodyAndHeadersOfTheDenyingRule(t *testing.T) {
	f := newFixture(t, denialLimits)
	requestAll := func() *rlsv3.RateLimitResponse { return f.request(desc("a=1"), desc("pass=1"), desc("shadow=1")) }
	admittedResponse := requestAll()
	assert.Empty(t, admittedResponse.RawBody)
	assert.Empty(t, admittedResponse.ResponseHeadersToAdd)

	deniedResponse := requestAll()
	assert.Equal(t, codeOverLimit, deniedResponse.OverallCode)
	assert.Equal(t, "slow down", string(deniedResponse.RawBody))
	assert.Equal(t, []string{"X-Rule: a", "content-type: text/plain; charset=utf-8"}, headerTexts(deniedResponse))

	f.request(desc("b=1"))
	bothDenied := f.request(desc("a=1"), desc("b=1"))
	assert.Equal(t, `{"b":1}`, string(bothDenied.RawBody), "the last denied descriptor answers")
	assert.Empty(t, f.request(desc("a=1"), desc("plain=1")).RawBody, "the last denied descriptor has no denial")
	assert.Empty(t, f.request(desc("shadow=1")).RawBody)

	f.svc.options.ShadowMode = true
	assert.Empty(t, requestAll().RawBody, "SHADOW_MODE admits the request")
}

func TestPolicyHeadersDescribeEachLimit(t *testing.T) {
	f := newFixture(t, `
domain: d
descriptors:
  - key: several
    rate_limits:
    - {unit: second, requests_per_unit: 2, name: 'say "x" \ é'}
    - {unit: minute, unit_multiplier: 15, requests_per_unit: 3, algorithm: sliding_log}
    - {unit: minute, requests_per_unit: 9}
  - {key: other, rate_limit: {unit: minute, requests_per_unit: 8}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: unlimited, rate_limit: {unlimited: true}}
`, func(o *Options) {
		o.PolicyHeaders = true
		o.Headers = &Headers{Limit: "X-L", Remaining: "X-R", Reset: "X-T"}
	})
	request := func() *rlsv3.RateLimitResponse {
		return f.request(desc("several=1"), desc("other=1"), desc("shadow=1"), desc("unlimited=1"))
	}
	policies := `RateLimit-Policy: "say \"x\" \\ ?";q=2;w=1, "per 15 minutes";q=3;w=900, "per minute";q=9;w=60, "per minute 2";q=8;w=60`
	assert.Equal(t, []string{
		"X-L: 0", "X-R: 0", "X-T: 23", policies, // envoyproxy/ratelimit describes limits in shadow mode too
		`RateLimit: "say \"x\" \\ ?";r=1;t=1, "per 15 minutes";r=2;t=900, "per minute";r=8;t=23, "per minute 2";r=7;t=23`,
	}, headerTexts(request()))
	request()
	deniedHeaders := headerTexts(request())
	assert.Contains(t, deniedHeaders, policies)
	assert.Contains(t, deniedHeaders, `RateLimit: "say \"x\" \\ ?";r=0;t=1, "per 15 minutes";r=0;t=900, "per minute";r=6;t=23, "per minute 2";r=5;t=23`)
	assert.Contains(t, deniedHeaders, "Retry-After: 900", "the denied request has charged the last hit of the 15 minutes")
	assert.Contains(t, deniedHeaders, "X-T: 900")

	assert.Empty(t, headerTexts(f.request(desc("none=1"))))
	f.svc.options.ShadowMode = true
	assert.NotContains(t, strings.Join(headerTexts(request()), "\n"), "Retry-After")
}

func TestRetryAfterIsWaitForDenyingLimitBehindTheLastPolicy(t *testing.T) {
	f := newFixture(t, `
domain: d
descriptors:
  - {key: pass, rate_limit: {unit: minute, requests_per_unit: 100}}
  - {key: hourly, rate_limit: {unit: hour, requests_per_unit: 1}}
`, func(o *Options) { o.PolicyHeaders = true })
	f.request(desc("hourly=1"))
	headers := headerTexts(f.request(append(repeat(maxPolicies, desc("pass=1")), desc("hourly=1"))...))
	assert.NotContains(t, headers[0], "per hour", "the last policy is that of the limit before")
	assert.Contains(t, headers, "Retry-After: 3563")
}

func TestPolicyNameIsAStringOfStructuredFields(t *testing.T) {
	l := backendtest.NewLimit(t, limit.Spec{Requests: 1, Unit: limit.Minute})
	for name, want := range map[string]string{
		"a b~":          `"a b~"`,
		"\x7f\x1f\n":    `"???"`,
		`say "no" \ `:   `"say \"no\" \\ "`,
		"f\u00fcr alle": `"f?r alle"`,
	} {
		assert.Equal(t, want, policyName(&descriptors.RateLimit{Name: name, Limit: l}))
	}
}

func TestPoliciesOfTheSameNameAreNumbered(t *testing.T) {
	assert.Equal(t, `"a"`, uniqueName([]string{`"b"`}, `"a"`))
	assert.Equal(t, `"a 2"`, uniqueName([]string{`"a"`}, `"a"`))
	assert.Equal(t, `"a 4"`, uniqueName([]string{`"a"`, `"a 2"`, `"a 3"`}, `"a"`))
}

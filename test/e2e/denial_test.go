//go:build e2e

package e2e_test

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const denialLimits = `domain: shop
descriptors:
- key: remote_address
  cidr: [10.0.0.0/8]
  denial:
    body: '{"error":"slow down"}'
    headers: {content-type: application/json, x-reason: office}
  rate_limits:
  - {name: office, unit: hour, requests_per_unit: 2}
  - {name: day, unit: day, requests_per_unit: 100}
- key: remote_address
  not: {cidr: [192.168.0.0/16]}
  denial: {message: please wait}
  rate_limit: {unit: hour, requests_per_unit: 0}
`

func TestDenialAndPolicyHeadersReachTheClient(t *testing.T) {
	envoy := exampleConfig(t, "envoy.yaml", startRLS(t, limitsFile(t, denialLimits), "LIMIT_POLICY_HEADERS_ENABLED=true")).start()
	office, outside, home := call{"/", "x-forwarded-for: 10.0.0.1"}, call{"/", "x-forwarded-for: 203.0.113.1"}, call{"/", "x-forwarded-for: 192.168.0.1"}

	const policy = `"office";q=2;w=3600, "day";q=100;w=86400`
	for i := range 2 {
		answer := envoy.send(t, office)
		require.Equal(t, http.StatusOK, answer.status)
		assert.Equal(t, policy, answer.Get("ratelimit-policy"))
		assert.Regexp(t, `^"office";r=`+strconv.Itoa(1-i)+`;t=\d+, "day";r=`+strconv.Itoa(99-i)+`;t=\d+$`, answer.Get("ratelimit"))
		assert.Empty(t, answer.Get("retry-after"))
		assert.Empty(t, answer.Get("x-reason"))
	}
	answer := envoy.send(t, office)
	assert.Equal(t, http.StatusTooManyRequests, answer.status)
	assert.Equal(t, `{"error":"slow down"}`, answer.body)
	assert.Equal(t, []string{"application/json"}, answer.Values("content-type"))
	assert.Equal(t, "office", answer.Get("x-reason"))
	assert.Equal(t, policy, answer.Get("ratelimit-policy"))
	assert.Regexp(t, `^"office";r=0;t=\d+, "day";r=97;t=\d+$`, answer.Get("ratelimit"))
	require.Len(t, answer.Values("retry-after"), 1)
	wait, err := strconv.Atoi(answer.Get("retry-after"))
	require.NoError(t, err)
	assert.Positive(t, wait)
	assert.LessOrEqual(t, wait, 3600)

	answer = envoy.send(t, outside)
	assert.Equal(t, http.StatusTooManyRequests, answer.status)
	assert.Equal(t, "please wait", answer.body)
	assert.Equal(t, []string{"text/plain; charset=utf-8"}, answer.Values("content-type"))

	assert.Equal(t, http.StatusOK, envoy.send(t, home).status, "no rule matches")
}

package service

import (
	"fmt"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/local"
)

const waitLimits = `
domain: d
descriptors:
  - {key: log, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: sliding_log}}
  - {key: window, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: sliding_window}}
  - {key: fixed, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: first, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: first_hit_window}}
  - {key: slow bucket, rate_limit: {unit: minute, requests_per_unit: 7, algorithm: token_bucket, burst: 5}}
  - {key: slots, rate_limit: {algorithm: concurrency, requests_per_unit: 5, hold: 47s}}
  - {key: bucket, rate_limit: {unit: second, requests_per_unit: 2, algorithm: token_bucket, burst: 4}}
  - key: both
    rate_limits:
      - {unit: minute, requests_per_unit: 5, algorithm: sliding_log}
      - {unit: second, requests_per_unit: 2, algorithm: token_bucket, burst: 4}
  - {key: quota bucket, quota_mode: true, rate_limit: {unit: second, requests_per_unit: 2, algorithm: token_bucket, burst: 4}}
  - {key: quota log, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 4, algorithm: sliding_log}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 4}}
`

// TestRetryAfterIsWhenTheSameRequestPasses sends a request until it is denied. It then waits for
// Retry-After, and for a second less.
func TestRetryAfterIsWhenTheSameRequestPasses(t *testing.T) {
	for _, keys := range []string{
		"log, bucket", "window, bucket", "fixed, bucket", "first, bucket", "slow bucket, bucket", "slots, bucket", "both",
		"log, window, fixed, first, slow bucket, slots, bucket", "quota bucket, quota log", "quota bucket, bucket, log", "shadow, bucket",
	} {
		for _, allOrNone := range []bool{false, true} {
			if allOrNone && strings.HasPrefix(keys, "quota bucket, quota log") {
				continue // the full log keeps the bucket from being charged, so the request always passes
			}
			t.Run(fmt.Sprintf("%s, all or none %v", keys, allOrNone), func(t *testing.T) {
				// requestUntilDenied returns a fixture after the first denial, the request, and the denial.
				requestUntilDenied := func() (*fixture, []*ratelimitv3.RateLimitDescriptor, *rlsv3.RateLimitResponse) {
					f := newFixture(t, waitLimits, func(o *Options) {
						o.PolicyHeaders, o.AllOrNone, o.Limiter = true, allOrNone, local.New(local.Options{})
					})
					var ds []*ratelimitv3.RateLimitDescriptor
					for key := range strings.SplitSeq(keys, ", ") {
						ds = append(ds, desc(key+"=x"))
					}
					for range 100 {
						f.now = f.now.Add(130 * time.Millisecond)
						if resp := f.request(ds...); resp.OverallCode == codeOverLimit {
							return f, ds, resp
						}
					}
					require.Fail(t, "no denial")
					return nil, nil, nil
				}
				f, ds, resp := requestUntilDenied()
				wait := retryAfter(t, resp)
				f.now = f.now.Add(wait)
				assert.Equal(t, codeOK, f.request(ds...).OverallCode, "after %v", wait)

				if wait > time.Second { // shorter waits are a second
					f, ds, _ = requestUntilDenied()
					f.now = f.now.Add(wait - time.Second)
					assert.Equal(t, codeOverLimit, f.request(ds...).OverallCode, "a second before %v", wait)
				}
				if keys == "both" {
					assert.Equal(t, wait, max(resp.Statuses[0].DurationUntilReset.AsDuration(), time.Second), "the status has the same wait")
				}
			})
		}
	}
}

// retryAfter returns the header Retry-After of resp.
func retryAfter(t *testing.T, resp *rlsv3.RateLimitResponse) time.Duration {
	for _, h := range headerTexts(resp) {
		if seconds, ok := strings.CutPrefix(h, "Retry-After: "); ok {
			wait, err := time.ParseDuration(seconds + "s")
			require.NoError(t, err)
			return wait
		}
	}
	require.Fail(t, "no Retry-After")
	return 0
}

func TestRequestThatNeverPassesHasNoRetryAfter(t *testing.T) {
	f := newFixture(t, waitLimits, func(o *Options) { o.PolicyHeaders = true })
	for _, keys := range [][]string{{"fixed"}, {"log", "bucket"}, {"both"}, {"quota bucket", "quota log"}} {
		var ds []*ratelimitv3.RateLimitDescriptor
		for _, key := range keys {
			ds = append(ds, withHits(9, desc(key+"=x")))
		}
		resp := f.request(ds...)
		assert.Equal(t, codeOverLimit, resp.OverallCode)
		assert.NotContains(t, strings.Join(headerTexts(resp), "\n"), "Retry-After")
	}
}

func TestPolicyOfConcurrencyHasNoWindow(t *testing.T) {
	f := newFixture(t, waitLimits, func(o *Options) { o.PolicyHeaders = true })
	assert.Contains(t, headerTexts(f.request(desc("slots=x"))), `RateLimit-Policy: "at a time";q=5`)
}

package descriptors

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const exampleFile = `domain: shop
descriptors:
- key: service
  value: checkout
  rate_limit: {unit: minute, requests_per_unit: 100}
  descriptors:
  - key: path
    value: /pay/*
    share_threshold: true
    rate_limits:
    - {unit: second, requests_per_unit: 10, algorithm: token_bucket, burst: 20, scope: instance}
    - {unit: day, unit_multiplier: 2, requests_per_unit: 1000, algorithm: sliding_log, on_backend_failure: deny, charge_denied: true}
  - {key: internal}
- {key: beta, shadow_mode: true, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 5, fallback_ratio: 0.5, lease: true, lease_waste: 0.4, name: b, replaces: [{name: c}]}}
- {key: admin, rate_limit: {unlimited: true}}
- {key: old, metadata: {a: b}, rate_limit: {unit: hour, requests_per_unit: 5, enabled: false}}
- {key: "new\nline", descriptors: [{key: x, detailed_metric: true, value_to_metric: true, rate_limit: {unit: week, requests_per_unit: 1}}]}
`

func TestWriteTreeShowsAllDescriptors(t *testing.T) {
	c := compileFiles(t, exampleFile, "domain: empty")
	var b strings.Builder
	require.NoError(t, c.WriteTree(&b))
	assert.Equal(t, `empty
shop
  service=checkout: 100 per minute
    path=/pay/*: 10 per second, token_bucket, burst 20, per instance and 1000 per 2 days, sliding_log, on_backend_failure deny, charge_denied true [share_threshold]
    internal: no limit
  beta: 5 per hour, fallback_ratio 0.5, lease true, lease_waste 0.4 (named b, replaces c) [shadow_mode, quota_mode]
  admin: unlimited
  old: 5 per hour (off) [metadata]
  "new\nline"
    x: 1 per week [value_to_metric, detailed_metric]
`, b.String())
}

func TestWriteLinesShowsLimitsInForceAndOff(t *testing.T) {
	c := compileFiles(t, "domain: z\ndescriptors: [{key: k, "+tenAMinute+"}]", exampleFile)
	var b strings.Builder
	require.NoError(t, c.WriteLines(&b))
	assert.Equal(t, `z.k: unit=MINUTE requests_per_unit=10, shadow_mode: false, quota_mode: false
shop.service_checkout: unit=MINUTE requests_per_unit=100, shadow_mode: false, quota_mode: false
shop.service_checkout.path_/pay/*: unit=SECOND requests_per_unit=10, shadow_mode: false, quota_mode: false, algorithm=token_bucket, burst=20, scope=instance
shop.service_checkout.path_/pay/*: unit=DAY requests_per_unit=1000, shadow_mode: false, quota_mode: false, algorithm=sliding_log, unit_multiplier=2, on_backend_failure=deny, charge_denied=true
shop.beta: unit=HOUR requests_per_unit=5, shadow_mode: true, quota_mode: true, fallback_ratio=0.5, lease=true, lease_waste=0.4
shop.admin: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false, unlimited=true
shop.old: unit=HOUR requests_per_unit=5, shadow_mode: false, quota_mode: false, enabled=false
"shop.new\nline.x": unit=WEEK requests_per_unit=1, shadow_mode: false, quota_mode: false
`, b.String())
}

func TestWriteLinesShowsEachLimitOfARule(t *testing.T) {
	c := compileFiles(t, oneDescriptor("rate_limits:\n- {unit: second, requests_per_unit: 1, enabled: false}\n- {unit: minute, requests_per_unit: 2}\n- {unit: hour, requests_per_unit: 3, enabled: false}\n- {unit: day, requests_per_unit: 4}"))
	var b strings.Builder
	require.NoError(t, c.WriteLines(&b))
	assert.Equal(t, `d.k: unit=SECOND requests_per_unit=1, shadow_mode: false, quota_mode: false, enabled=false
d.k: unit=MINUTE requests_per_unit=2, shadow_mode: false, quota_mode: false
d.k: unit=HOUR requests_per_unit=3, shadow_mode: false, quota_mode: false, enabled=false
d.k: unit=DAY requests_per_unit=4, shadow_mode: false, quota_mode: false
`, b.String())
}

func TestStoreReturnsTheLastConfig(t *testing.T) {
	var s Store
	assert.Nil(t, s.Load())
	c := &Config{}
	s.Set(c)
	assert.Same(t, c, s.Load())
}

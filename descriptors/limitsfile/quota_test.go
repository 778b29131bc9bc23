package limitsfile

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const tokenBucketOf10 = "rate_limit: {unit: second, requests_per_unit: 10, algorithm: token_bucket}"

func TestQuotaSaysHowEnvoysShareTheLimit(t *testing.T) {
	for _, test := range []struct {
		name, yaml string
		want       *Quota
	}{
		{"quota is true", tokenBucketOf10 + "\nquota: true", &Quota{0.01, 0.01, 15_000_000}},
		{"quota is false", tokenBucketOf10 + "\nquota: false", nil},
		{"quota is null", tokenBucketOf10 + "\nquota: ~", nil},
		{"an empty mapping", tokenBucketOf10 + "\nquota: {}", &Quota{0.01, 0.01, 15_000_000}},
		{"all fields", tokenBucketOf10 + "\nquota: {min_share: 0.5, headroom: 0.1, ttl: 1m}", &Quota{0.5, 0.1, 60_000_000}},
		{"a list with one limit", "rate_limits: [{unit: day, requests_per_unit: 1, algorithm: token_bucket, burst: 5}]\nquota: true", &Quota{0.01, 0.01, 15_000_000}},
		{"an unlimited rule", "rate_limit: {unlimited: true}\nquota: true", &Quota{0.01, 0.01, 15_000_000}},
	} {
		t.Run(test.name, func(t *testing.T) {
			set, errs, warnings := load(oneDescriptor(test.yaml), Options{})
			require.Empty(t, errs+warnings)
			assert.Equal(t, test.want, set.Domains[0].Descriptors[0].Quota)
		})
	}
}

func TestQuotaOfOtherLimitsIsRejectedWithAReason(t *testing.T) {
	const bucket = "unit: second, requests_per_unit: 1000, algorithm: token_bucket"
	for _, test := range []struct{ name, yaml, want string }{
		{"a number", tokenBucketOf10 + "\nquota: 5", "f:5:12: d > k: quota: got 5, want true or false, or a mapping"},
		{"an unknown field", tokenBucketOf10 + "\nquota: {share: 1}", "f:5:13: d > k: unknown key share; want min_share, headroom or ttl"},
		{"a short ttl", tokenBucketOf10 + "\nquota: {ttl: 5s}", "d > k: ttl: got 5s, want a time from 11s to 10m, such as 30s"},
		{"a large headroom", tokenBucketOf10 + "\nquota: {headroom: 0.6}", "headroom: got 0.6, want a number over 0 and up to 0.5"},
		{"no limit", "quota: true", "f:4:12: d > k: quota needs exactly one limit in the same descriptor"},
		{"two limits", "rate_limits: [{" + bucket + "}, {unit: day, requests_per_unit: 1}]\nquota: true", "quota needs exactly one limit"},
		{"a window", "rate_limit: {unit: day, requests_per_unit: 1}\nquota: true", "f:5:12: d > k: quota needs algorithm: token_bucket, because Envoy has only token buckets; got fixed_window"},
		{"concurrency", "rate_limit: {algorithm: concurrency, requests_per_unit: 1}\nquota: true", "got concurrency"},
		{"scope instance", "rate_limit: {" + bucket + ", scope: instance}\nquota: true", "quota has no meaning with scope: instance"},
		{"replaces", "rate_limit: {" + bucket + ", replaces: [{name: x}]}\nquota: true", "quota has no meaning with replaces"},
		{"a lease", "rate_limit: {" + bucket + ", lease: true}\nquota: true", "quota has no meaning with lease"},
		{"charge_denied", "rate_limit: {" + bucket + ", charge_denied: true}\nquota: true", "quota has no meaning with charge_denied"},
		{"max_hits", tokenBucketOf10 + "\nmax_hits: 5\nquota: true", "quota has no meaning with max_hits"},
		{"quota in a limit", "rate_limit: {" + bucket + ", quota: true}", "quota has no meaning in rate_limit; it belongs in the descriptor"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs, _ := load(oneDescriptor(test.yaml), Options{})
			assert.Contains(t, errs, test.want)
		})
	}
	_, errs, _ := load(oneDescriptor(tokenBucketOf10+"\nquota: true"), Options{StoreWithoutHolds: "memcached"})
	assert.Contains(t, errs, "quota: memcached can't keep quotas; remove quota, or count in Redis")
}

func TestQuotaOrderHasKeys(t *testing.T) {
	set, errs, warnings := load("domain: d\nquota_order: [tenant, path]\n", Options{})
	require.Empty(t, errs+warnings)
	assert.Equal(t, []string{"tenant", "path"}, set.Domains[0].QuotaOrder)

	for yaml, want := range map[string]string{
		"domain: d\nquota_order: tenant":     "quota_order: got tenant, want a list",
		"domain: d\nquota_order: [[]]":       "f:2:15: d: item of quota_order: got a list, want text",
		"domain: d\nquota_order: [a, b, a]":  "f:2:21: d: quota_order has the key a twice; remove one",
		"domain: d\nquota_order: [a, '', b]": "item of quota_order",
	} {
		_, errs, _ := load(yaml, Options{})
		assert.Contains(t, errs, want, yaml)
	}
	_, err := Parse([]File{{"f", []byte("domain: d\nquota_order: [a]")}, {"g", []byte("domain: d\nquota_order: [b]")}}, Options{MergeDomains: true})
	assert.ErrorContains(t, err, "g:2:14: d: duplicate quota_order: another file of the domain has one")
}

func TestOverrideCanNotBreakQuota(t *testing.T) {
	set, errs, _ := load(oneDescriptor(tokenBucketOf10+"\nquota: true"), Options{})
	require.Empty(t, errs)
	domain := set.Domains[0]
	for value, want := range map[string]string{
		`{"requests_per_unit": 5}`:      "",
		`{"unlimited": true}`:           "",
		`{"algorithm": "sliding_log"}`:  "quota needs algorithm: token_bucket",
		`{"scope": "instance"}`:         "quota has no meaning with scope: instance",
		`{"algorithm": "fixed_window"}`: "quota needs algorithm: token_bucket",
	} {
		p, err := ParsePatch("d|k", []byte(value))
		require.NoError(t, err)
		_, problems := p.Apply(domain, "d > k", domain.Descriptors[0])
		if want == "" {
			assert.Empty(t, problems, value)
		} else {
			assert.ErrorContains(t, problems, want, value)
		}
	}
}

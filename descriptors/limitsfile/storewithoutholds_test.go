package limitsfile

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHoldsAndLeasesNeedAStoreThatCanKeepThem(t *testing.T) {
	const holds = "but memcached can't keep holds; want scope: instance, another algorithm, or counters in Redis (BACKEND_TYPE=redis)"
	for name, c := range map[string]struct{ yaml, err, warning string }{
		"holds of all replicas":     {oneDescriptor("rate_limit: {algorithm: concurrency, requests_per_unit: 4}"), "f:4:29: d > k: algorithm: got concurrency, " + holds, ""},
		"holds by default":          {"domain: d\ndefaults: {algorithm: concurrency}\ndescriptors:\n- key: k\n  rate_limit: {requests_per_unit: 4}", "f:2:23: d > k: algorithm: got concurrency, " + holds, ""},
		"holds of a single replica": {oneDescriptor("rate_limit: {algorithm: concurrency, requests_per_unit: 4, scope: instance}"), "", ""},
		"a lease":                   {oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1000, lease: true}"), "", "f:4:61: d > k: lease has no effect, because memcached can't keep leases; remove lease, or count in Redis (BACKEND_TYPE=redis)"},
		"no lease":                  {oneDescriptor("rate_limit: {unit: day, requests_per_unit: 1000, lease: false}"), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := Parse([]File{{Name: "f", Data: []byte(c.yaml)}}, Options{StoreWithoutHolds: "memcached"})
			if c.err != "" {
				assert.EqualError(t, err, c.err)
				return
			}
			require.NoError(t, err)
			warning := ""
			if len(set.Warnings) > 0 {
				warning = set.Warnings.Error()
			}
			assert.Equal(t, c.warning, warning)
		})
	}
}

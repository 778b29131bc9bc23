//go:build e2e

package e2e_test

import (
	"net/http"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	"github.com/stretchr/testify/assert"
)

// TestOnlyOnePlaceOfRateLimitsCounts checks what docs/envoy.md#one-place-counts says. Each place of the example sends
// another descriptor: the virtual host sends remote_address, /login remote_address with path, /import items, and the filter
// of some cases sends from.
func TestOnlyOnePlaceOfRateLimitsCounts(t *testing.T) {
	const ok, denied = http.StatusOK, http.StatusTooManyRequests
	const zero = `rate_limit: {unit: day, requests_per_unit: 0}`
	const ofVirtualHost, ofImport, ofFilter = `{key: remote_address, ` + zero + `}`, `{key: items, ` + zero + `}`, `{key: from, ` + zero + `}`
	const ofLogin = `{key: remote_address, descriptors: [{key: path, value: /login, ` + zero + `}]}`
	for name, test := range map[string]struct {
		limit                       string
		isSetInFilter               bool
		other, login, included, own int // the status of a route without rate_limits, with them, with INCLUDE, and with typed_per_filter_config
	}{
		"virtual host":                          {ofVirtualHost, false, denied, ok, denied, ok},
		"route":                                 {ofLogin, false, ok, denied, ok, ok},
		"typed_per_filter_config":               {ofImport, false, ok, ok, ok, denied},
		"virtual host, if the filter has some":  {ofVirtualHost, true, ok, ok, ok, ok},
		"route, if the filter has some":         {ofLogin, true, ok, ok, ok, ok},
		"filter":                                {ofFilter, true, denied, denied, denied, ok},
		"typed_per_filter_config, and a filter": {ofImport, true, ok, ok, ok, denied},
	} {
		t.Run(name, func(t *testing.T) {
			config := exampleConfig(t, "envoy.yaml", startRLS(t, limitsFile(t, "domain: shop\ndescriptors: ["+test.limit+"]\n")))
			config.editImportRoute(func(r *ratelimitv3.RateLimitPerRoute) {
				r.RateLimits = r.RateLimits[:1]
				r.RateLimits[0].HitsAddend = nil
			})
			if test.isSetInFilter {
				config.editFilter(func(f *ratelimitv3.RateLimit) {
					f.RateLimits = []*routev3.RateLimit{{Actions: []*routev3.RateLimit_Action{{ActionSpecifier: &routev3.RateLimit_Action_GenericKey_{
						GenericKey: &routev3.RateLimit_Action_GenericKey{DescriptorKey: "from", DescriptorValue: "filter"},
					}}}}}
				})
			}
			envoy := config.start()
			for path, want := range map[string]int{"/": test.other, "/login": test.login, "/tenant": test.included, "/import": test.own} {
				assert.Equal(t, want, envoy.send(t, call{path}).status, path)
			}
		})
	}
}

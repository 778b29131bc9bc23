//go:build e2e

package e2e_test

import (
	"fmt"
	"net/http"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	filterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	setfilterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	setmetadatav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_metadata/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/limit"
)

// itemLimits charge no denied hits, unlike the limits of the example.
const itemLimits = `
domain: shop
descriptors:
  - key: items
    rate_limit: {unit: hour, requests_per_unit: 100, algorithm: token_bucket}
`

func TestHeaderSetsHitsOfDescriptor(t *testing.T) {
	config := exampleConfig(t, "envoy.yaml", startRLS(t, limitsFile(t, itemLimits)))
	config.editImportRoute(func(r *ratelimitv3.RateLimitPerRoute) {
		r.RateLimits = r.RateLimits[:1]
		r.RateLimits[0].HitsAddend = &routev3.RateLimit_HitsAddend{Format: "%REQ(x-items)%"}
	})
	envoy := config.start()
	for _, step := range []struct {
		items     string
		status    int
		remaining int
	}{
		{"60", http.StatusOK, 40},
		{"41", http.StatusTooManyRequests, 40}, // all or nothing
		{"40", http.StatusOK, 0},
		{"1", http.StatusTooManyRequests, 0},
		{"1000", http.StatusTooManyRequests, 0}, // above the limit
	} {
		answer := envoy.send(t, call{"/import", "x-items: " + step.items})
		assert.Equal(t, step.status, answer.status, step.items)
		answer.assertHeaders(t, `100, 100;w=3600`, step.remaining)
	}
}

// TestDynamicMetadataSetsHitsOfDescriptor tests a filter that sets the hits of a descriptor, as dynamic metadata.
func TestDynamicMetadataSetsHitsOfDescriptor(t *testing.T) {
	config := exampleConfig(t, "envoy.yaml", startRLS(t, limitsFile(t, itemLimits)))
	items, err := structpb.NewStruct(map[string]any{"items": 30})
	require.NoError(t, err)
	config.editHTTP(func(hcm *hcmv3.HttpConnectionManager) {
		prependFilter(t, hcm, &setmetadatav3.Config{Metadata: []*setmetadatav3.Metadata{{MetadataNamespace: "shop", Value: items}}})
	})
	config.editImportRoute(func(r *ratelimitv3.RateLimitPerRoute) {
		r.RateLimits = r.RateLimits[:1]
		r.RateLimits[0].HitsAddend = &routev3.RateLimit_HitsAddend{Format: "%DYNAMIC_METADATA(shop:items)%"}
	})
	envoy := config.start()
	for i, status := range []int{http.StatusOK, http.StatusOK, http.StatusOK, http.StatusTooManyRequests} {
		answer := envoy.send(t, call{"/import"})
		assert.Equal(t, status, answer.status)
		answer.assertHeaders(t, `100, 100;w=3600`, max(70-30*i, 10))
	}
}

// TestFilterStateSetsHitsOfAllDescriptors tests a filter that sets the hits of all descriptors, as filter state.
func TestFilterStateSetsHitsOfAllDescriptors(t *testing.T) {
	config := exampleConfig(t, "envoy.yaml", startRLS(t, exampleLimits(t)))
	config.editHTTP(func(hcm *hcmv3.HttpConnectionManager) {
		prependFilter(t, hcm, &setfilterstatev3.Config{OnRequestHeaders: []*filterstatev3.FilterStateValue{{
			Key: &filterstatev3.FilterStateValue_ObjectKey{ObjectKey: "envoy.ratelimit.hits_addend"},
			Value: &filterstatev3.FilterStateValue_FormatString{FormatString: &corev3.SubstitutionFormatString{
				Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
					Specifier: &corev3.DataSource_InlineString{InlineString: "10"},
				}},
			}},
		}}})
	})
	envoy := config.start()
	for i := range 3 {
		answer := envoy.send(t, call{"/search?key=k1"})
		assert.Equal(t, http.StatusOK, answer.status)
		answer.assertHeaders(t, `30, 30;w=60`, 20-10*i)
	}
	assert.Equal(t, http.StatusTooManyRequests, envoy.send(t, call{"/search?key=k1"}).status)
}

// TestCostFromResponseIsChargedAtStreamEnd tests the route /import of the example: the
// request charges nothing, and the response names the hits.
func TestCostFromResponseIsChargedAtStreamEnd(t *testing.T) {
	for _, algorithm := range limit.Algorithms() {
		if algorithm.HasHolds() {
			continue // a limit with holds counts calls, and not costs
		}
		t.Run(algorithm.String(), func(t *testing.T) {
			limits := limitsFile(t, fmt.Sprintf(`
domain: shop
descriptors:
  - key: items
    rate_limit: {unit: year, requests_per_unit: 100, algorithm: %s, charge_denied: true}
`, algorithm))
			envoy := exampleConfig(t, "envoy.yaml", startRLS(t, limits)).start()
			awaitRemaining := func(want string) {
				t.Helper()
				polltest.Until(t, maxWait, func() bool {
					return envoy.send(t, call{"/import", "x-items: 0"}).Get("x-ratelimit-remaining") == want
				})
			}
			assert.Equal(t, http.StatusOK, envoy.send(t, call{"/import", "x-items: 60"}).status)
			awaitRemaining("40")
			assert.Equal(t, http.StatusOK, envoy.send(t, call{"/import", "x-items: 70"}).status, "a peek, as the cost is not known yet")
			awaitRemaining("0")
			assert.Equal(t, http.StatusTooManyRequests, envoy.send(t, call{"/import", "x-items: 1"}).status)
		})
	}
}

// editImportRoute edits the route that sets hits_addend.
func (c config) editImportRoute(edit func(*ratelimitv3.RateLimitPerRoute)) {
	c.t.Helper()
	c.editHTTP(func(hcm *hcmv3.HttpConnectionManager) {
		for _, route := range hcm.GetRouteConfig().VirtualHosts[0].Routes {
			if route.Match.GetPrefix() == "/import" {
				editAny(c.t, route.TypedPerFilterConfig["envoy.filters.http.ratelimit"], edit)
			}
		}
	})
}

// prependFilter puts a filter before all others.
func prependFilter(t *testing.T, hcm *hcmv3.HttpConnectionManager, filter proto.Message) {
	t.Helper()
	content, err := anypb.New(filter)
	require.NoError(t, err)
	hcm.HttpFilters = append([]*hcmv3.HttpFilter{{
		Name: string(filter.ProtoReflect().Descriptor().FullName()), ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: content},
	}}, hcm.HttpFilters...)
}

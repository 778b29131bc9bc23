//go:build e2e

package e2e_test

import (
	"net/http"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/stretchr/testify/assert"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// TestSecondStageCountsOnlyCallsThatPassedTheFirst runs two filters and has actions for
// each.
func TestSecondStageCountsOnlyCallsThatPassedTheFirst(t *testing.T) {
	limits := limitsFile(t, `
domain: shop
descriptors:
  - {key: stage, value: first, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: stage, value: second, rate_limit: {unit: year, requests_per_unit: 100}}
`)
	config := exampleConfig(t, "envoy.yaml", startRLS(t, limits))
	config.editHTTP(func(hcm *hcmv3.HttpConnectionManager) {
		secondFilter := proto.CloneOf(hcm.HttpFilters[0])
		secondFilter.Name = "second"
		editAny(t, secondFilter.GetTypedConfig(), func(f *ratelimitv3.RateLimit) { f.Stage = 1 })
		hcm.HttpFilters = append([]*hcmv3.HttpFilter{hcm.HttpFilters[0], secondFilter}, hcm.HttpFilters[1:]...)
		host := hcm.GetRouteConfig().VirtualHosts[0]
		host.RateLimits = []*routev3.RateLimit{stageAction(0, "first"), stageAction(1, "second")}
	})
	envoy := config.start()
	for i, want := range []int{http.StatusOK, http.StatusOK, http.StatusOK, http.StatusTooManyRequests, http.StatusTooManyRequests} {
		answer := envoy.send(t, call{"/"})
		assert.Equal(t, want, answer.status, "call %d", i+1)
	}
	// Without the first filter a call shows the count of the second stage.
	config.editHTTP(func(hcm *hcmv3.HttpConnectionManager) { hcm.HttpFilters = hcm.HttpFilters[1:] })
	assert.Equal(t, "96", config.start().send(t, call{"/"}).Get("x-ratelimit-remaining"))
}

func stageAction(n uint32, value string) *routev3.RateLimit {
	return &routev3.RateLimit{
		Stage: wrapperspb.UInt32(n),
		Actions: []*routev3.RateLimit_Action{{ActionSpecifier: &routev3.RateLimit_Action_GenericKey_{
			GenericKey: &routev3.RateLimit_Action_GenericKey{DescriptorKey: "stage", DescriptorValue: value},
		}}},
	}
}

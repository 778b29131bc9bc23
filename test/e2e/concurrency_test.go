//go:build e2e

package e2e_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/test/envoyconf"
)

// slowUpstream answers each request when the test lets it.
type slowUpstream struct {
	addr                string
	answer              chan struct{} // an element lets one request end
	waiting, maxWaiting atomic.Int64
}

func startSlowUpstream(t *testing.T) *slowUpstream {
	u := &slowUpstream{answer: make(chan struct{})}
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		n := u.waiting.Add(1)
		defer u.waiting.Add(-1)
		for maxWaiting := u.maxWaiting.Load(); n > maxWaiting && !u.maxWaiting.CompareAndSwap(maxWaiting, n); maxWaiting = u.maxWaiting.Load() {
		}
		<-u.answer
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(u.answer) }) // before Close, which waits for the requests
	u.addr = server.Listener.Addr().String()
	return u
}

// TestAtMostFourRequestsAreAtTheUpstream has the settings of docs/envoy.md: Envoy sends a release
// only for requests that have a slot.
func TestAtMostFourRequestsAreAtTheUpstream(t *testing.T) {
	limits := limitsFile(t, `
domain: shop
descriptors:
  - key: slot
    value: reports
    rate_limit: {algorithm: concurrency, requests_per_unit: 4, hold: 60s}
    metadata: {slot: reports}
`)
	upstream := startSlowUpstream(t)
	config := exampleConfig(t, "envoy.yaml", startRLS(t, limits, "RESPONSE_DYNAMIC_METADATA=true"))
	config.setEndpoints("echo", upstream.addr)
	config.editImportRoute(func(route *ratelimitv3.RateLimitPerRoute) {
		page, err := os.ReadFile(filepath.Join(root, "docs/envoy.md"))
		require.NoError(t, err)
		_, text, _ := strings.Cut(string(page), "<!-- slots -->\n```yaml\n")
		text, _, ok := strings.Cut(text, "```")
		require.True(t, ok, "docs/envoy.md has the settings")
		host := new(routev3.VirtualHost)
		require.NoError(t, envoyconf.Unmarshal([]byte("name: shop\ndomains: ['*']\nroutes:\n"+text), host))
		perRoute := new(ratelimitv3.RateLimitPerRoute)
		require.NoError(t, host.Routes[0].TypedPerFilterConfig["envoy.filters.http.ratelimit"].UnmarshalTo(perRoute))
		route.RateLimits = perRoute.RateLimits
	})
	envoy := config.start()
	var ok, denied atomic.Int64
	var goroutines sync.WaitGroup
	send := func(n int) {
		for range n {
			goroutines.Go(func() {
				switch a, err := envoy.trySend(call{"/import"}); {
				case !assert.NoError(t, err):
				case a.status == http.StatusOK:
					ok.Add(1)
				case a.status == http.StatusTooManyRequests:
					denied.Add(1)
				}
			})
		}
	}
	send(10)
	polltest.Until(t, maxWait, func() bool { return upstream.waiting.Load() == 4 && denied.Load() == 6 })
	for range 5 {
		assert.Equal(t, http.StatusTooManyRequests, envoy.send(t, call{"/import"}).status, "a denied request releases no slot")
	}
	for round := range 2 { // the slots come back
		for range 4 {
			upstream.answer <- struct{}{}
		}
		goroutines.Wait()
		assert.EqualValues(t, 4*(round+1), ok.Load())
		if round == 0 {
			polltest.Until(t, maxWait, func() bool {
				if upstream.waiting.Load() < 4 {
					send(1)
				}
				time.Sleep(10 * time.Millisecond)
				return upstream.waiting.Load() == 4
			})
		}
	}
	assert.EqualValues(t, 4, upstream.maxWaiting.Load())
}

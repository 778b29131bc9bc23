//go:build e2e

package e2e_test

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	localratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seed-81f232ab/rls/test/envoyconf"
)

// TestLocalLimitKeepsAFloodFromRls runs examples/envoy-local-limit.yaml with slower buckets: each address has 40
// requests, and all addresses have 60.
func TestLocalLimitKeepsAFloodFromRls(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "examples/envoy-local-limit.yaml"))
	require.NoError(t, err)
	c := config{t, new(bootstrapv3.Bootstrap)}
	require.NoError(t, envoyconf.Unmarshal(text, c.Bootstrap))
	address := c.StaticResources.Listeners[0].Address.GetSocketAddress()
	address.Address, address.PortSpecifier = "127.0.0.1", &corev3.SocketAddress_PortValue{}
	c.Admin = &bootstrapv3.Admin{Address: socketAddress("127.0.0.1:0")}
	c.setEndpoints("shop", startUpstream(t))
	decisions := t.TempDir() + "/decisions.log"
	limits := limitsFile(t, "domain: shop\ndescriptors: [{key: remote_address, rate_limit: {unit: year, requests_per_unit: 1000}}]\n")
	c.setEndpoints("rls", startRLS(t, limits, "CALLER_HEADER=x-envoy-node", "DECISION_LOG=all", "DECISION_LOG_PATH="+decisions).grpc)
	c.editHTTP(func(hcm *hcmv3.HttpConnectionManager) {
		editAny(t, hcm.HttpFilters[0].GetTypedConfig(), func(f *localratelimitv3.LocalRateLimit) {
			f.TokenBucket.MaxTokens, f.TokenBucket.FillInterval = 60, durationpb.New(1e12)
			f.Descriptors[0].TokenBucket.FillInterval = durationpb.New(1e12)
		})
	})
	envoy := c.start()
	send := func(from string, n int) (admitted int) {
		dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
		for range n {
			resp, err := client.Get(envoy.url)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			if resp.StatusCode == http.StatusOK {
				admitted++
			}
		}
		return admitted
	}
	assert.Equal(t, 40, send("127.0.0.1", 200), "the bucket of the address")
	assert.Equal(t, 20, send("127.0.0.2", 30), "the bucket of all addresses lost no token to denied requests")
	assert.Contains(t, envoy.adminPage("/stats"), "local.http_local_rate_limit.rate_limited: 170\n")
	assert.Contains(t, envoy.adminPage("/stats"), "cluster.shop.ratelimit.ok: 60\n")
	host, err := os.Hostname()
	require.NoError(t, err)
	log, err := os.ReadFile(decisions)
	require.NoError(t, err)
	assert.Contains(t, string(log), `"caller":"127.0.0.1 `+host+`"`)
}

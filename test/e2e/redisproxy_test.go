//go:build e2e

package e2e_test

import (
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/redis_proxy/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/test/envoyconf"
)

// redisProxy is an Envoy before a Redis.
const redisProxy = `
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  listeners:
  - name: redis
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.redis_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy
          stat_prefix: redis
          settings: {op_timeout: 1s}
          prefix_routes: {catch_all_route: {cluster: redis}}
  clusters:
  - name: redis
    type: STATIC
    connect_timeout: 1s
    lb_policy: RING_HASH
`

// The proxy's INFO is of a Cluster, and its TIME has all microseconds since 1970. Neither is true of Redis.
func TestWindowsAreRightBehindEnvoysRedisProxy(t *testing.T) {
	b := new(bootstrapv3.Bootstrap)
	require.NoError(t, envoyconf.Unmarshal([]byte(redisProxy), b))
	c := config{t, b}
	c.setEndpoints("redis", redistest.Start(t).Addr)
	proxy := c.start()
	service := startRLS(t, limitsFile(t, `
domain: shop
descriptors:
- key: fixed
  rate_limit: {unit: hour, requests_per_unit: 3}
- key: bucket
  rate_limit: {unit: hour, requests_per_unit: 3, algorithm: token_bucket}
`), "REDIS_URL="+proxy.url[len("http://"):])
	conn, err := grpc.NewClient(service.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	for n := range 5 {
		for _, key := range []string{"fixed", "bucket"} {
			now := time.Now()
			answer, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{
				Domain:      "shop",
				Descriptors: []*commonv3.RateLimitDescriptor{{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: key, Value: "1"}}}},
			})
			require.NoError(t, err)
			assert.Equal(t, n >= 3, answer.OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT, "%s %d", key, n)
			if key == "fixed" {
				end := now.Truncate(time.Hour).Add(time.Hour)
				assert.InDelta(t, end.Sub(now).Seconds(), answer.Statuses[0].DurationUntilReset.AsDuration().Seconds(), 3)
			}
		}
	}
	service.await("check of Redis", func() bool { return strings.Contains(service.text(), "redis_proxy is before Redis") })
	assert.NotContains(t, service.text(), "node of a Cluster")
	assert.NotContains(t, service.text(), "clock of Redis")
}

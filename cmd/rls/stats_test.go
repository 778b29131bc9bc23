package main

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestStatsdReceivesAllCounts compares lines with those of envoyproxy/ratelimit for the same
// calls.
func TestStatsdReceivesAllCounts(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	packets := make(chan string)
	go func() {
		defer close(packets)
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			lines, _ := io.ReadAll(conn)
			packets <- string(lines)
		}
	}()
	service := start(t, []string{
		"USE_STATSD=true", "STATSD_HOST=127.0.0.1", fmt.Sprintf("STATSD_PORT=%d", server.Addr().(*net.TCPAddr).Port),
		"STATS_FLUSH_INTERVAL=100ms", "EXTRA_TAGS=dc:eu.1",
	}, "--limits", writeFile(t, "limits.yaml", "domain: shop\ndescriptors: [{key: ip, value: 10.0.0.1, rate_limit: {unit: year, requests_per_unit: 2}}]"))
	allLines := make(chan string)
	go func() {
		var lines strings.Builder
		for packet := range packets {
			lines.WriteString(packet)
		}
		allLines <- lines.String()
	}()
	rls(t, "hit", "-a", service.grpc, "-d", "shop", "ip=10.0.0.1", "-n", "4")
	require.NoError(t, service.stop())
	require.NoError(t, server.Close())

	sums := map[string]int{}
	for line := range strings.Lines(<-allLines) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if count, isCounter := strings.CutSuffix(value, "|c"); isCounter && strings.HasPrefix(name, "ratelimit") {
			var n int
			_, err := fmt.Sscan(count, &n)
			require.NoError(t, err)
			name, hasTag := strings.CutSuffix(name, ".__dc=eu_1")
			require.True(t, hasTag, line)
			sums[name] += n
		}
	}
	const rule = "ratelimit.service.rate_limit.shop.ip_10_0_0_1."
	assert.Equal(t, 1, sums["ratelimit.service.config_load_success"])
	assert.Equal(t, map[string]int{"total_hits": 4, "within_limit": 2, "near_limit": 1, "over_limit": 2}, map[string]int{
		"total_hits": sums[rule+"total_hits"], "within_limit": sums[rule+"within_limit"],
		"near_limit": sums[rule+"near_limit"], "over_limit": sums[rule+"over_limit"],
	})
}

func TestDeadStatsdDoesNotStopTheService(t *testing.T) {
	t.Parallel()
	closedListener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, closedListener.Close())
	service := start(t, []string{
		"USE_STATSD=true", "STATSD_HOST=127.0.0.1", fmt.Sprintf("STATSD_PORT=%d", closedListener.Addr().(*net.TCPAddr).Port), "STATS_FLUSH_INTERVAL=100ms",
	}, "--limits", writeFile(t, "limits.yaml", threePerYear))
	out, _, _ := rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme", "-n", "100", "--rate", "200")
	assert.Contains(t, out, "3 OK, 97 OVER_LIMIT, 0 errors")
	require.NoError(t, service.stop())
	assert.Equal(t, 1, strings.Count(service.logText(), "metrics not sent"))
}

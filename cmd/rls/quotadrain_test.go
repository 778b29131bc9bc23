package main

import (
	"syscall"
	"testing"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const quotaLimits = `
domain: shop
descriptors:
- {key: tenant, quota: true, rate_limit: {unit: second, requests_per_unit: 100, algorithm: token_bucket}}
`

// openQuotaStream opens a stream to a replica, and returns after the first answer.
func openQuotaStream(t *testing.T, addr string) (stream rlqsv3.RateLimitQuotaService_StreamRateLimitQuotasClient, share string) {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	stream, err = rlqsv3.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&rlqsv3.RateLimitQuotaUsageReports{Domain: "shop", BucketQuotaUsages: []*rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{{
		BucketId: &rlqsv3.BucketId{Bucket: map[string]string{"tenant": "acme"}}, NumRequestsAllowed: 5,
	}}}))
	answer, err := stream.Recv()
	require.NoError(t, err)
	return stream, answer.GetBucketAction()[0].String()
}

func TestDrainKeepsQuotaStreamsInTheDelayAndThenEndsThem(t *testing.T) {
	t.Parallel()
	limits := writeFile(t, "limits.yaml", quotaLimits)
	const delay = 2 * time.Second
	drainingReplica := start(t, []string{"DRAIN_DELAY=" + delay.String(), "DRAIN_TIMEOUT=1m"}, "--limits", limits)
	otherReplica := start(t, nil, "--limits", limits)
	stream, _ := openQuotaStream(t, drainingReplica.grpc)
	require.NoError(t, drainingReplica.cmd.Process.Signal(syscall.SIGTERM))
	begin := time.Now()
	var err error
	for err == nil {
		_, err = stream.Recv()
	}
	streamTime := time.Since(begin)
	assert.GreaterOrEqual(t, streamTime, delay-100*time.Millisecond, "Envoys find another replica in the delay: %v", err)
	assert.Less(t, streamTime, delay+10*time.Second)
	_, share := openQuotaStream(t, otherReplica.grpc)
	assert.Contains(t, share, "token_bucket")
	select {
	case <-drainingReplica.done:
		assert.Less(t, time.Since(begin), 30*time.Second, "the process does not wait for DRAIN_TIMEOUT")
		assert.Zero(t, drainingReplica.cmd.ProcessState.ExitCode())
	case <-time.After(30 * time.Second):
		assert.Fail(t, "still running")
	}
	assert.NotContains(t, drainingReplica.logText(), "cut at the drain timeout")
}

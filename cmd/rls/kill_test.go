package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/limit"
)

// limitOfEachAlgorithm returns a limits file with a rule for each algorithm, and a rule with a lease.
func limitOfEachAlgorithm() string {
	text := "domain: shop\ndescriptors:\n- {key: leased, rate_limit: {unit: day, requests_per_unit: 1000000, lease: true}}\n"
	for _, algorithm := range limit.Algorithms() {
		window := "unit: day"
		if algorithm.HasHolds() {
			window = "hold: 1h"
		}
		text += fmt.Sprintf("- {key: %s, rate_limit: {%s, requests_per_unit: 3, algorithm: %s}}\n", algorithm, window, algorithm)
	}
	return text
}

// callUntilServiceEnds starts several callers that call r with new keys until a call fails. waitForCallers returns when all
// callers have ended.
func (r *testService) callUntilServiceEnds() (waitForCallers func()) {
	const callers = 8
	conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = conn.Close() })
	client := rlsv3.NewRateLimitServiceClient(conn)
	var callerGroup sync.WaitGroup
	for range callers {
		callerGroup.Go(func() {
			for {
				value := fmt.Sprint(rand.Int64())
				req := &rlsv3.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{
					{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "leased", Value: "acme"}}},
				}}
				for _, algorithm := range limit.Algorithms() {
					entry := &ratelimitv3.RateLimitDescriptor_Entry{Key: algorithm.String(), Value: value}
					req.Descriptors = append(req.Descriptors, &ratelimitv3.RateLimitDescriptor{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{entry}})
				}
				ctx := context.Background()
				if rand.IntN(2) == 0 { // holds of the other calls have no id
					ctx = metadata.AppendToOutgoingContext(ctx, "rls-hold", value)
				}
				if _, err := client.ShouldRateLimit(ctx, req); err != nil {
					return
				}
			}
		})
	}
	return callerGroup.Wait
}

func TestKilledServiceLeavesNoKeyWithoutTimeToLive(t *testing.T) {
	t.Parallel()
	singleRedis := redistest.Start(t)
	cluster := redistest.StartCluster(t, 3, false)
	for name, test := range map[string]struct {
		env     []string
		servers []*redistest.Server
	}{
		"single":  {[]string{"REDIS_URL=" + singleRedis.Addr}, []*redistest.Server{singleRedis}},
		"cluster": {[]string{"REDIS_TYPE=cluster", "REDIS_URL=" + cluster.URL()}, cluster.Masters},
	} {
		t.Run(name, func(t *testing.T) {
			var clients []*goredis.Client
			for _, s := range test.servers {
				clients = append(clients, s.Client(t))
			}
			keys := func() (names []string) {
				for _, c := range clients {
					names = append(names, c.Keys(t.Context(), "*").Val()...)
				}
				return names
			}
			for round := range 3 {
				r := startReplicasWithEnv(t, 1, test.env, limitOfEachAlgorithm())[0]
				waitForCallers := r.callUntilServiceEnds()
				polltest.Until(t, maxWait, func() bool { return r.usedPermits() > 0 && len(keys()) > 500 })
				time.Sleep(time.Duration(rand.IntN(20_000)) * time.Microsecond) // so that the kill comes at any place of a batch
				require.NoError(t, r.cmd.Process.Kill())
				waitForCallers()
				for _, c := range clients {
					// When Redis has closed the connections, it has read all that the service has sent.
					polltest.Until(t, maxWait, func() bool { return strings.Count(c.ClientList(t.Context()).Val(), "\n") == 1 })
				}
				for _, part := range []string{":fw", ":fh", ":sw", ":sl", ":tb", ":cc", ":lease:"} {
					assert.True(t, slices.ContainsFunc(keys(), func(key string) bool { return strings.Contains(key, part) }), part)
				}
				require.Greater(t, redistest.RequireAllExpire(t, test.servers...), 500, "round %d", round)
				for _, c := range clients {
					require.NoError(t, c.FlushAll(t.Context()).Err())
				}
			}
		})
	}
}

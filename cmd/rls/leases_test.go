package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

const leasedLimits = `
domain: shop
descriptors:
- {key: tenant, rate_limit: {unit: day, requests_per_unit: %d, algorithm: %s, lease: true}}
`

// newTenantCaller returns a function that sends a hit of tenant acme, and reports whether r admits
// it. An error means that r does not answer.
func (r *testService) newTenantCaller() func() (isAdmitted bool, err error) {
	conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = conn.Close() })
	client := rlsv3.NewRateLimitServiceClient(conn)
	req := &rlsv3.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
		Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "tenant", Value: "acme"}},
	}}}
	return func() (bool, error) {
		resp, err := client.ShouldRateLimit(context.Background(), req)
		return resp.GetOverallCode() == rlsv3.RateLimitResponse_OK, err
	}
}

// usedPermits returns the permits that have admitted hits of r.
func (r *testService) usedPermits() int {
	_, body := get(r.t, "http://"+r.debug+"/metrics")
	return number(r.t, `(?m)^rls_lease_permits_used_total (\S+)`, body)
}

// number returns the number that a pattern finds in text.
func number(t *testing.T, pattern, text string) int {
	match := regexp.MustCompile(pattern).FindStringSubmatch(text)
	require.NotEmpty(t, match, text)
	n, err := strconv.ParseFloat(match[1], 64)
	require.NoError(t, err)
	return int(n)
}

// TestKilledReplicaWastesAtMostTheLeaseBudget kills one of three replicas with SIGKILL while all
// have more demand than the limit. A lost replica can waste its permits and the hits that it
// had charged and not answered. The window of a day does not end in the test.
func TestKilledReplicaWastesAtMostTheLeaseBudget(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	const limit, leaseBudget, denials = 1000, 10, 50
	replicas := startReplicas(t, 3, redis, fmt.Sprintf(leasedLimits, limit, "fixed_window"), "OVERRIDES_ENABLED=false")
	var admitted atomic.Int64
	var callers sync.WaitGroup
	for i, replica := range replicas {
		call := replica.newTenantCaller()
		callers.Go(func() {
			for denied := 0; denied < denials; {
				switch ok, err := call(); {
				case err != nil:
					assert.Zero(t, i, "only the first replica is killed: %v", err)
					return
				case !ok:
					denied++
				case admitted.Add(1) == limit/2:
					go func() { _ = replicas[0].cmd.Process.Kill() }()
				}
			}
		})
	}
	callers.Wait()
	assert.LessOrEqual(t, admitted.Load(), int64(limit))
	assert.GreaterOrEqual(t, admitted.Load(), int64(limit-leaseBudget))
	assert.Positive(t, replicas[1].usedPermits()+replicas[2].usedPermits())
	assert.GreaterOrEqual(t, redistest.RequireAllExpire(t, redis), 2, "the counter, and the counter of the lease")
}

func TestStoppedReplicaReturnsItsPermits(t *testing.T) {
	t.Parallel()
	// A token bucket refills during the test, so that up to 60 admitted hits no longer count as spent.
	for algorithm, maxRefill := range map[string]int{"fixed_window": 0, "token_bucket": 60} {
		t.Run(algorithm, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t)
			replica := startReplicas(t, 1, redis, fmt.Sprintf(leasedLimits, 100_000, algorithm), "OVERRIDES_ENABLED=false", "ADMIN_TOKEN=")[0]
			call := replica.newTenantCaller()
			admitted := 0
			ctx, stopCalls := context.WithCancel(t.Context())
			var calls sync.WaitGroup
			calls.Go(func() { // calls go on while rls explain runs, because a replica without calls returns its permits
				for ctx.Err() == nil {
					ok, err := call()
					if !assert.NoError(t, err) || !assert.True(t, ok) {
						return
					}
					admitted++
				}
			})
			polltest.Until(t, maxWait, func() bool {
				report := runExplain(t, "tenant=acme", "--admin", replica.debug, "--timeout", maxWait.String())
				return replica.usedPermits() > 0 && report.Descriptors[0].Limits[0].Counter.Permits > 0
			})
			stopCalls()
			calls.Wait()
			require.NoError(t, replica.stop())
			newReplica := startReplicas(t, 1, redis, fmt.Sprintf(leasedLimits, 100_000, algorithm), "OVERRIDES_ENABLED=false")[0]
			code, answer := newReplica.admin("GET", "counters", "shop|tenant=acme", "")
			assert.Equal(t, 200, code)
			spent := number(t, `"spent": (\d+)`, answer)
			assert.LessOrEqual(t, spent, admitted)
			assert.GreaterOrEqual(t, spent, admitted-maxRefill)
			for _, key := range redis.Client(t).Keys(t.Context(), "*lease:*").Val() {
				assert.Equal(t, "0", redis.Client(t).Get(t.Context(), key).Val(), "the allowance is back")
				assert.Positive(t, redis.Client(t).PTTL(t.Context(), key).Val())
			}
		})
	}
}

package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/limit"
)

// temporaryLimits has for each algorithm a limit of 20 a day, whose key is the name of the algorithm, and
// two limits that deny most requests.
func temporaryLimits() string {
	text := `
domain: shop
descriptors:
- {key: once, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: rarely, rate_limit: {unit: second, requests_per_unit: 3}}
`
	for _, algorithm := range limit.Algorithms() {
		if !algorithm.HasHolds() {
			text += fmt.Sprintf("- {key: %s, rate_limit: {unit: day, requests_per_unit: 20, algorithm: %s}}\n", algorithm, algorithm)
		}
	}
	return text
}

// newRequester returns a function that sends a request with one hit for each key, and reports whether r
// admits the request. All descriptors have the same value.
func (r *testService) newRequester(value string, md ...string) func(keys ...string) (isAdmitted bool) {
	conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = conn.Close() })
	client := rlsv3.NewRateLimitServiceClient(conn)
	ctx := metadata.AppendToOutgoingContext(context.Background(), md...)
	return func(keys ...string) bool {
		req := &rlsv3.RateLimitRequest{Domain: "shop"}
		for _, k := range keys {
			req.Descriptors = append(req.Descriptors, &ratelimitv3.RateLimitDescriptor{
				Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: k, Value: value}},
			})
		}
		// On a busy machine, the set-up of a connection can exceed its time limit, and then starts again.
		resp, err := client.ShouldRateLimit(ctx, req, grpc.WaitForReady(true))
		assert.NoError(r.t, err)
		return resp.GetOverallCode() == rlsv3.RateLimitResponse_OK
	}
}

// If the charge of a hit has caused denials of other hits, these denials must end when the charge is refunded.
func TestTemporaryChargeCausesNoLaterDenial(t *testing.T) {
	t.Parallel()
	singleRedis := redistest.Start(t)
	cluster := redistest.StartCluster(t, 3, false)
	perSecond := redistest.Start(t)
	acquire := []string{limit.AcquireKey, "true"}
	const allOrNone = "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true"
	for name, test := range map[string]struct {
		env      []string
		metadata []string
		otherKey string // the key of the limit that denies most requests
	}{
		"acquires, single Redis":                   {[]string{"REDIS_URL=" + singleRedis.Addr}, acquire, "rarely"},
		"all or none, single Redis":                {[]string{"REDIS_URL=" + singleRedis.Addr, allOrNone}, nil, "once"},
		"acquires, Cluster":                        {[]string{"REDIS_TYPE=cluster", "REDIS_URL=" + cluster.URL()}, acquire, "once"},
		"all or none, Cluster":                     {[]string{"REDIS_TYPE=cluster", "REDIS_URL=" + cluster.URL(), allOrNone}, nil, "once"},
		"acquires, Redis for limits per second":    {[]string{"REDIS_URL=" + singleRedis.Addr, "REDIS_PERSECOND=true", "REDIS_PERSECOND_URL=" + perSecond.Addr}, acquire, "rarely"},
		"all or none, Redis for limits per second": {[]string{"REDIS_URL=" + singleRedis.Addr, "REDIS_PERSECOND=true", "REDIS_PERSECOND_URL=" + perSecond.Addr, allOrNone}, nil, "rarely"},
		"acquires, all or none, single Redis":      {[]string{"REDIS_URL=" + singleRedis.Addr, allOrNone}, acquire, "once"},
		"acquires, all or none, Redis Cluster":     {[]string{"REDIS_TYPE=cluster", "REDIS_URL=" + cluster.URL(), allOrNone}, acquire, "once"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := append([]string{"BACKEND_TYPE=redis", "REDIS_TIMEOUT=5s", "CACHE_KEY_PREFIX=" + redistest.Open(t).Prefix}, test.env...)
			replicas := startReplicasWithEnv(t, 3, env, temporaryLimits())
			for _, algorithm := range limit.Algorithms() {
				if algorithm.HasHolds() {
					continue
				}
				var admitted atomic.Int64
				var callers sync.WaitGroup
				for i := range 48 {
					request := replicas[i%3].newRequester(algorithm.String(), test.metadata...)
					callers.Go(func() {
						for range 10 {
							if admitted.Load() < 6 && request(test.otherKey, algorithm.String()) {
								admitted.Add(1)
							}
						}
					})
				}
				callers.Wait()
				hitsLeft := 20 - int(admitted.Load())
				require.Positive(t, hitsLeft, "the other limit denies most requests")
				for i := range hitsLeft {
					assert.True(t, replicas[i%3].newRequester(algorithm.String())(algorithm.String()), "%s: hit %d of %d that are left", algorithm, i+1, hitsLeft)
				}
				assert.False(t, replicas[0].newRequester(algorithm.String())(algorithm.String()), algorithm)
			}
		})
	}
}

// In an all-or-none request, the first hit can use up the limit, so that the second hit is denied. Then Redis charges neither
// of them.
func TestDeniedRequestWithTwoHitsOnOneCounterChargesNothing(t *testing.T) {
	t.Parallel()
	for name, env := range map[string][]string{
		"all or none": {"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true"},
		"acquire":     nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			replica := startReplicas(t, 1, redistest.Start(t), temporaryLimits(), env...)[0]
			for _, algorithm := range limit.Algorithms() {
				if algorithm.HasHolds() {
					continue
				}
				request := replica.newRequester("x", limit.AcquireKey, "true")
				key := algorithm.String()
				for range 19 {
					require.True(t, request(key))
				}
				assert.False(t, request(key, key), "%s: only one of two hits fits", key)
				assert.True(t, request(key), "%s: nothing was charged", key)
				assert.False(t, request(key), key)
			}
		})
	}
}

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/internal/whatif/limitsplan"
	"github.com/seed-81f232ab/rls/limit"
)

// replayedLimits have windows that do not end in a test. %s is further fields of the limit leased.
const replayedLimits = `
domain: shop
descriptors:
- {key: fixed_window, rate_limit: {unit: year, requests_per_unit: 6}}
- {key: first_hit_window, rate_limit: {unit: year, requests_per_unit: 6, algorithm: first_hit_window}}
- {key: sliding_window, rate_limit: {unit: year, requests_per_unit: 6, algorithm: sliding_window}}
- {key: sliding_log, rate_limit: {unit: year, requests_per_unit: 6, algorithm: sliding_log}}
- {key: token_bucket, rate_limit: {unit: year, requests_per_unit: 6, algorithm: token_bucket}}
- {key: charging, rate_limit: {unit: year, requests_per_unit: 6, algorithm: sliding_log, charge_denied: true}}
- {key: slots, rate_limit: {requests_per_unit: 2, algorithm: concurrency, hold: 24h}}
- {key: leased, rate_limit: {unit: year, requests_per_unit: 400%s}}
- {key: two, rate_limits: [{unit: year, requests_per_unit: 8}, {unit: week, requests_per_unit: 5, algorithm: sliding_log}]}
- {key: instance, rate_limit: {unit: year, requests_per_unit: 6, scope: instance}}
- {key: trial, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 6}}
- {key: quota, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 6}}
- {key: kept, refunds: false, rate_limit: {unit: year, requests_per_unit: 6}}
- {key: bounded, max_hits: 2, rate_limit: {unit: year, requests_per_unit: 6}}
- {key: free, rate_limit: {unlimited: true}}
`

var replayedKeys = []string{
	"fixed_window", "first_hit_window", "sliding_window", "sliding_log", "token_bucket", "charging", "slots", "leased", "leased", "leased", "two",
	"instance", "trial", "quota", "kept", "bounded", "free", "none",
}

// randomCalls sends calls to the replicas one after the other: hits, peeks, refunds, holds, and calls
// of callers that wait.
func randomCalls(t *testing.T, random *rand.Rand, count int, replicas ...*testService) {
	t.Helper()
	var clients []rlsv3.RateLimitServiceClient
	for _, replica := range replicas {
		conn, err := grpc.NewClient(replica.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close()
		clients = append(clients, rlsv3.NewRateLimitServiceClient(conn))
	}
	for range count {
		req := &rlsv3.RateLimitRequest{Domain: "shop"}
		for range 1 + random.IntN(3) {
			hits := []int64{1, 1, 1, 1, 2, 3, 0, -1, -2}[random.IntN(9)]
			d := &ratelimitv3.RateLimitDescriptor{
				Entries:    []*ratelimitv3.RateLimitDescriptor_Entry{{Key: replayedKeys[random.IntN(len(replayedKeys))], Value: strconv.Itoa(random.IntN(2))}},
				HitsAddend: wrapperspb.UInt64(uint64(max(hits, -hits))), IsNegativeHits: hits < 0,
			}
			req.Descriptors = append(req.Descriptors, d)
		}
		callMetadata := metadata.MD{}
		if random.IntN(3) == 0 {
			callMetadata.Set(limit.AcquireKey, "true")
		}
		if hold := random.IntN(4); hold > 0 {
			callMetadata.Set(limit.HoldKey, "holder"+strconv.Itoa(hold))
		}
		_, _ = clients[random.IntN(len(clients))].ShouldRateLimit(metadata.NewOutgoingContext(context.Background(), callMetadata), req) // refused refunds fail
	}
}

// runPlan runs rls plan with the limits and logs, and returns its report.
func runPlan(t *testing.T, args ...string) *limitsplan.Report {
	t.Helper()
	out, errOut, code := rls(t, append([]string{"plan", "--json"}, args...)...)
	require.Zero(t, code, errOut)
	report := new(limitsplan.Report)
	require.NoError(t, json.Unmarshal([]byte(out), report))
	return report
}

// TestReplayOfUnchangedLimitsChangesNothing records the decisions of replicas with a real Redis and
// replays them. Only the cases of docs/planning-limits.md#what-a-replay-cannot-repeat may differ.
func TestReplayOfUnchangedLimitsChangesNothing(t *testing.T) {
	t.Parallel()
	const lease = ", lease: true"
	for _, test := range []struct {
		name      string
		replicas  int
		lease     string
		env       []string
		flags     []string
		unit      string // in place of year
		callers   int    // at the same time; default 1
		outage    bool
		mayDiffer bool // a replay cannot repeat what the replicas did
	}{
		{name: "without caches", replicas: 1, env: []string{"LOCAL_CACHE_SIZE_IN_BYTES=0"}},
		{name: "deny cache", replicas: 1},
		{name: "all or none", replicas: 1, env: []string{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true"}, flags: []string{"--all-or-none"}},
		{name: "shadow mode", replicas: 1, env: []string{"SHADOW_MODE=true"}, flags: []string{"--shadow-mode"}},
		{name: "quota mode", replicas: 1, env: []string{"QUOTA_MODE=true"}, flags: []string{"--quota-mode"}},
		{name: "no refunds", replicas: 1, env: []string{"NEGATIVE_HITS=refuse"}},
		{name: "three replicas", replicas: 3, env: []string{"LOCAL_CACHE_SIZE_IN_BYTES=0"}},
		{name: "deny caches of three replicas", replicas: 3, mayDiffer: true},
		{name: "leases", replicas: 2, lease: lease, env: []string{"LOCAL_CACHE_SIZE_IN_BYTES=0"}, mayDiffer: true},
		{name: "leases, all or none", replicas: 2, lease: lease, env: []string{"LOCAL_CACHE_SIZE_IN_BYTES=0", "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true"}, flags: []string{"--all-or-none"}, mayDiffer: true},
		{name: "fallback", replicas: 2, lease: lease, outage: true, mayDiffer: true},
		{name: "windows that end, callers at the same time", replicas: 2, env: []string{"LOCAL_CACHE_SIZE_IN_BYTES=0"}, unit: "second", callers: 4, mayDiffer: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t)
			limits := strings.ReplaceAll(fmt.Sprintf(replayedLimits, test.lease), "year", cmp.Or(test.unit, "year"))
			args := append([]string{writeFile(t, "limits.yaml", limits)}, test.flags...)
			var replicas []*testService
			logs := t.TempDir()
			for i := range test.replicas {
				log := filepath.Join(logs, strconv.Itoa(i)+".log")
				args = append(args, "--from", log)
				env := append([]string{"DECISION_LOG=all", "DECISION_LOG_MAX_PER_SECOND=0", "DECISION_LOG_PATH=" + log, "OVERRIDES_ENABLED=false"}, test.env...)
				replicas = append(replicas, startReplicas(t, 1, redis, limits, env...)...)
			}
			var callers sync.WaitGroup
			for i := range max(test.callers, 1) {
				callers.Go(func() {
					random := rand.New(rand.NewPCG(1, uint64(i)))
					randomCalls(t, random, 700/max(test.callers, 1), replicas...)
					if test.outage {
						redis.Kill()
						randomCalls(t, random, 200, replicas...)
						redis.Restart(t)
						randomCalls(t, random, 200, replicas...)
					}
				})
			}
			callers.Wait()
			for _, replica := range replicas {
				require.NoError(t, replica.stop())
			}
			report := runPlan(t, args...)
			assert.Positive(t, report.Calls.Total)
			differences := report.Calls.NewlyDenied + report.Calls.NewlyAdmitted
			assert.True(t, test.mayDiffer || differences == 0, "%+v", report.Calls)
			if test.outage {
				assert.Positive(t, differences)
			}
		})
	}
}

//go:build upgrade

package upgrade

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// limitsPerYear has a limit of 500 a year for each algorithm. So no window ends during the test, and a
// bucket gets no token back.
const limitsPerYear = `
domain: shop
descriptors:
  - {key: fixed_window, rate_limit: {unit: year, requests_per_unit: 500}}
  - {key: fixed_window_uncharged, rate_limit: {unit: year, requests_per_unit: 500, charge_denied: false}}
  - {key: first_hit_window, rate_limit: {unit: year, requests_per_unit: 500, algorithm: first_hit_window}}
  - {key: sliding_window, rate_limit: {unit: year, requests_per_unit: 500, algorithm: sliding_window}}
  - {key: sliding_log, rate_limit: {unit: year, requests_per_unit: 500, algorithm: sliding_log}}
  - {key: token_bucket, rate_limit: {unit: year, requests_per_unit: 500, algorithm: token_bucket}}
  - {key: leased, rate_limit: {unit: year, requests_per_unit: 500, lease: true}}
  - {key: overridden, rate_limit: {unit: year, requests_per_unit: 500}}
`

const limitOfYear = 500

func request(key string) *rlsv3.RateLimitRequest {
	return &rlsv3.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
		Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: key, Value: "acme"}},
	}}}
}

// isAllowed sends a call and reports whether it was allowed.
func (p *process) isAllowed(t *testing.T, key string) bool {
	response, err := p.ShouldRateLimit(t.Context(), request(key))
	if !assert.NoError(t, err) {
		return false
	}
	return response.OverallCode == rlsv3.RateLimitResponse_OK
}

// sendCalls sends calls for a key to both replicas, several at once, and returns the number of
// allowed calls.
func sendCalls(t *testing.T, replicas [2]*process, key string, calls int) int64 {
	var allowedCalls atomic.Int64
	var senderGroup sync.WaitGroup
	const senders = 8
	for sender := range senders {
		senderGroup.Go(func() {
			for call := sender; call < calls; call += senders {
				if replicas[call/senders%2].isAllowed(t, key) {
					allowedCalls.Add(1)
				}
			}
		})
	}
	senderGroup.Wait()
	return allowedCalls.Load()
}

func TestTwoVersionsShareOneRedis(t *testing.T) {
	lastProgram, currentProgram := buildLast(t), buildProgram(t, "../..")
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	require.NoError(t, os.WriteFile(limits, []byte(limitsPerYear), 0o600))
	t.Run("upgrade and rollback keep limits exact", func(t *testing.T) {
		requireExactLimits(t, lastProgram, currentProgram, limits)
	})
	t.Run("overrides of both versions apply to both", func(t *testing.T) {
		requireSharedOverrides(t, lastProgram, currentProgram, limits)
	})
}

// requireExactLimits replaces two replicas of the last version one after the other, and goes back
// in the same way. Each limit is reached while both versions run.
func requireExactLimits(t *testing.T, lastProgram, currentProgram, limits string) {
	redisAddr := redistest.Start(t).Addr
	keys := []string{"fixed_window", "fixed_window_uncharged", "first_hit_window", "sliding_window", "sliding_log", "token_bucket", "leased"}
	var replicas [2]*process
	allowedCalls := map[string]int64{}
	for _, step := range [][2]string{{lastProgram, lastProgram}, {currentProgram, lastProgram}, {currentProgram, currentProgram}, {lastProgram, currentProgram}, {lastProgram, lastProgram}} {
		for i, program := range step {
			if replicas[i] != nil && replicas[i].program == program {
				continue
			}
			if replicas[i] != nil {
				replicas[i].stop()
			}
			replicas[i] = startProcess(t, program, redisAddr, limits)
		}
		for _, key := range keys {
			allowedCalls[key] += sendCalls(t, replicas, key, 136)
		}
	}
	for _, key := range keys {
		if key == "leased" {
			// A replica can hold permits of the lease that no call of the test uses.
			assert.LessOrEqual(t, allowedCalls[key], int64(limitOfYear), key)
			assert.GreaterOrEqual(t, allowedCalls[key], int64(limitOfYear*99/100), key)
			continue
		}
		assert.Equal(t, int64(limitOfYear), allowedCalls[key], key)
	}
}

// requireSharedOverrides changes one override with each version in turn.
func requireSharedOverrides(t *testing.T, lastProgram, currentProgram, limits string) {
	redisAddr := redistest.Start(t).Addr
	for _, test := range []struct {
		name           string
		setter, reader string
	}{
		{"set by the last version", lastProgram, currentProgram},
		{"set by this version", currentProgram, lastProgram},
	} {
		t.Run(test.name, func(t *testing.T) {
			setter, reader := startProcess(t, test.setter, redisAddr, limits), startProcess(t, test.reader, redisAddr, limits)
			setter.limits(t, "set", "-d", "shop", "overridden=acme", "requests_per_unit=3", "--reason", "upgrade")
			requireLimit(t, reader, 3)
			reader.limits(t, "set", "-d", "shop", "overridden=acme", "requests_per_unit=4")
			requireLimit(t, setter, 4)
			setter.limits(t, "rollback")
			requireLimit(t, reader, 3)
			reader.limits(t, "unset", "-d", "shop", "overridden=acme")
			requireLimit(t, setter, limitOfYear)
		})
	}
}

// requireLimit waits until the replica has the limit in force for the overridden descriptor.
func requireLimit(t *testing.T, p *process, requests uint32) {
	t.Helper()
	peek := request("overridden")
	peek.Descriptors[0].HitsAddend = wrapperspb.UInt64(0)
	polltest.Until(t, 30*time.Second, func() bool {
		response, err := p.ShouldRateLimit(t.Context(), peek)
		require.NoError(t, err)
		return response.Statuses[0].CurrentLimit.GetRequestsPerUnit() == requests
	}, "limit %d", requests)
}

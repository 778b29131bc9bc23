package faults

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

var regionSeed = flag.Uint64("region-seed", 0, "the seed of the schedule of the regions; 0 chooses one")

const regionLimits = `
domain: d
descriptors:
- key: fixed
  rate_limit: {unit: year, requests_per_unit: 3000, scope: global}
- key: sliding
  rate_limit: {unit: year, requests_per_unit: 3000, algorithm: sliding_window, scope: global}
- key: bucket
  rate_limit: {unit: second, requests_per_unit: 200, burst: 400, algorithm: token_bucket, scope: global}
`

// TestRegionHistoriesStayWithinTheLimit runs three regions with two replicas each. Each region is 35, 80 or 150 ms away
// from the global Redis. Meanwhile regions are cut off in different ways, and replicas are killed.
func TestRegionHistoriesStayWithinTheLimit(t *testing.T) {
	seed := *regionSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-args -region-seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	chaosTime, calmTime := 9*time.Second, 4*time.Second
	if *isFullRun {
		chaosTime = 60 * time.Second
	}
	global := redistest.Start(t)
	path := filepath.Join(t.TempDir(), "limits.yaml")
	require.NoError(t, os.WriteFile(path, []byte(regionLimits), 0o600))
	var proxies []*proxy
	var replicas [3][2]atomic.Pointer[process]
	var settings [3][]string
	for i, roundTrip := range []int{35, 80, 150} {
		p := startProxy(t, "127.0.0.1:0", global.Addr)
		p.addToxic("latency", 1, fmt.Sprintf(`"latency": %d`, roundTrip/2))
		proxies = append(proxies, p)
		settings[i] = []string{
			"REDIS_URL=" + redistest.Start(t).Addr, "REDIS_GLOBAL_URL=" + p.Listen, "REDIS_TIMEOUT=5s",
			fmt.Sprint("REGION=r", i), "REGIONS=3", "LIMITS_PATH=" + path,
		}
		for j := range replicas[i] {
			replicas[i][j].Store(startProcess(t, settings[i]...))
		}
	}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	start := time.Now()
	admitted := map[string]*atomic.Int64{"fixed": {}, "sliding": {}, "bucket": {}}
	var callers sync.WaitGroup
	for i := range replicas {
		for j := range replicas[i] {
			for key, count := range admitted {
				callers.Go(func() {
					for ctx.Err() == nil {
						if isAdmitted(ctx, replicas[i][j].Load(), key) {
							count.Add(1)
						}
						time.Sleep(5 * time.Millisecond)
					}
				})
			}
		}
	}
	for time.Since(start) < chaosTime {
		i := random.IntN(len(proxies))
		pause := time.Duration(200+random.IntN(1300)) * time.Millisecond
		switch event := random.IntN(4); event {
		case 0: // the network refuses connections
			proxies[i].Stop()
			time.Sleep(pause)
			require.NoError(t, proxies[i].Start())
		case 1: // orders get lost
			disturb(t, proxies[i], "upstream", pause)
		case 2: // orders arrive, but their answers get lost
			disturb(t, proxies[i], "downstream", pause)
		case 3:
			replica := &replicas[i][random.IntN(2)]
			replica.Load().kill()
			replica.Store(startProcess(t, settings[i]...))
		}
		time.Sleep(pause / 2)
	}
	time.Sleep(calmTime)
	stop()
	callers.Wait()
	seconds := time.Since(start).Seconds()
	for key, most := range map[string]int64{"fixed": 3000, "sliding": 3000, "bucket": 400 + int64(200*seconds) + 1} {
		got := admitted[key].Load()
		t.Logf("%s: admitted %d of at most %d", key, got, most)
		assert.LessOrEqual(t, got, most, key)
		assert.Greater(t, got, most/2, key)
	}
}

// disturb lets the data in one direction get lost for a time.
func disturb(t *testing.T, p *proxy, direction string, duration time.Duration) {
	name := "lost " + direction
	_, err := p.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(`{"name": %q, "type": "timeout", "stream": %q, "attributes": {"timeout": 0}}`, name, direction)))
	require.NoError(t, err)
	time.Sleep(duration)
	require.NoError(t, p.Toxics.RemoveToxic(t.Context(), name))
}

func isAdmitted(ctx context.Context, p *process, key string) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	response, err := p.client.ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: key, Value: "acme"}}},
	}})
	return err == nil && response.GetOverallCode() == rlsv3.RateLimitResponse_OK
}

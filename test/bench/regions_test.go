//go:build redis

package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/test/bench/curves"
)

// TestRegions measures what it costs a region to share a limit with other regions: a steady rate, and as many calls as
// possible. It prints a table, and asserts no figure, because machines are noisy.
func TestRegions(t *testing.T) {
	global := redistest.Start(t)
	start := func(name, fields string, env ...string) target {
		path := filepath.Join(t.TempDir(), "limits.yaml")
		require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, leaseLimits, fields), 0o644))
		redis := redistest.Start(t)
		env = append(env, "REDIS_URL="+redis.Addr, "REDIS_TIMEOUT=1s", "LIMITS_PATH="+path, "LOG_LEVEL=error")
		cmd, addr := startProgram(t, os.Getenv(programEnv), env...)
		return newTarget(t, name, addr, cmd.Process.Pid, redis.Client(t))
	}
	shared := []string{"REDIS_GLOBAL_URL=" + global.Addr, "REGION=r1", "REGIONS=3"}
	targets := []target{
		start("scope: region", ""),
		start("scope: global", ", scope: global", shared...),
		start("scope: region, token_bucket", ", algorithm: token_bucket"),
		start("scope: global, token_bucket", ", algorithm: token_bucket, scope: global", shared...),
	}
	roundPlan := newRounds(t, 4)
	table := new(strings.Builder)
	fmt.Fprintf(table, "| load | limit | calls/s | p50 | p99 | CPU of the server in a call | CPU of Redis in a call |\n|---|---|---|---|---|---|---|\n")
	client := global.Client(t)
	for _, load := range []curves.Load{{Rate: 5000, Descriptors: 1, Keys: 1}, {Rate: 5000, Descriptors: 1, Keys: 10_000}, {InFlight: 64, Descriptors: 1, Keys: 1}} {
		ordersBefore := orderCount(t, client)
		cells := roundPlan.measure(targets, load)
		for i, c := range cells {
			median := func(f curves.Figure) float64 { return c.Figures[f].Median }
			ratio := func(f curves.Figure) float64 { return median(f) / cells[i/2*2].Figures[f].Median }
			fmt.Fprintf(table, "| %s | %s | %.0f (%.2f×) | %.2f ms (%.2f×) | %.2f ms (%.2f×) | %.1f µs (%.2f×) | %.1f µs (%.2f×) |\n", load.Name(), c.Server,
				median(curves.PerSecond), ratio(curves.PerSecond), median(curves.P50)/1000, ratio(curves.P50), median(curves.P99)/1000, ratio(curves.P99),
				median(curves.ServerCPU), ratio(curves.ServerCPU), median(curves.RedisCPU), ratio(curves.RedisCPU))
		}
		t.Logf("%s: %d orders in the global Redis, in all rounds of both limits", load.Name(), orderCount(t, client)-ordersBefore)
	}
	t.Logf("medians of %d rounds; (n×) is the ratio to the limit of the row before\n%s", roundPlan.number, table)
}

// orderCount returns the number of orders that the global Redis has executed.
func orderCount(t *testing.T, client *goredis.Client) (n int64) {
	info, err := client.InfoMap(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	_, err = fmt.Sscanf(info["Commandstats"]["cmdstat_eval"], "calls=%d", &n)
	require.NoError(t, err)
	return n
}

//go:build redis

package bench

import (
	"cmp"
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

// leaseLimits are the limits of TestLeases. %s is for more fields.
const leaseLimits = `
domain: bench
descriptors:
  - key: service
    value: checkout
    descriptors:
      - key: ip
        rate_limit: {unit: second, requests_per_unit: 100000%s}
`

// TestLeases measures what leases save: a steady rate on one key, and as many calls as possible.
// It prints a table, and asserts no figure, because machines are noisy.
func TestLeases(t *testing.T) {
	start := func(name, fields string, env ...string) target {
		path := filepath.Join(t.TempDir(), "limits.yaml")
		require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, leaseLimits, fields), 0o644))
		var servers []*goredis.Client
		if env == nil {
			redis := redistest.Start(t)
			env, servers = []string{"REDIS_URL=" + redis.Addr, "REDIS_TIMEOUT=1s"}, []*goredis.Client{redis.Client(t)}
		}
		cmd, addr := startProgram(t, os.Getenv(programEnv), append(env, "LIMITS_PATH="+path, "LOG_LEVEL=error")...)
		return newTarget(t, name, addr, cmd.Process.Pid, servers...)
	}
	targets := []target{
		startNothing(t),
		start(curves.Local, "", "BACKEND_TYPE=local"),
		start(curves.Redis, ""),
		start(curves.Lease, ", lease: true"),
		start(curves.Lease+", token_bucket", ", lease: true, algorithm: token_bucket"),
	}
	roundPlan := newRounds(t, 4)
	table := new(strings.Builder)
	fmt.Fprintf(table, "| load | server | CPU of the server in a call | ÷ a server that does nothing | p99 | ÷ counting in the process | commands of Redis in 1,000 calls |\n|---|---|---|---|---|---|---|\n")
	for _, load := range []curves.Load{{Rate: 5000, Descriptors: 1, Keys: 1}, {InFlight: 64, Descriptors: 1, Keys: 1}} {
		cells := roundPlan.measure(targets, load)
		median := func(i int, f curves.Figure) float64 { return cells[i].Figures[f].Median }
		for i, c := range cells {
			fmt.Fprintf(table, "| %s | %s | %.1f µs | %.2f | %.2f ms | %.2f | %.1f |\n", cmp.Or(load.Name(), "steady"), c.Server,
				median(i, curves.ServerCPU), median(i, curves.ServerCPU)/median(0, curves.ServerCPU),
				median(i, curves.P99)/1000, median(i, curves.P99)/median(1, curves.P99), 1000*median(i, curves.RedisCommands))
		}
	}
	t.Logf("medians of %d rounds\n%s", roundPlan.number, table)
}

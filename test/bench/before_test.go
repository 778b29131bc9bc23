//go:build redis

package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/test/bench/curves"
)

// beforeEnv names an earlier build of rls. `make bench-before` sets it.
const beforeEnv = "RLS_BENCH_BEFORE"

// TestBeforeAndAfter compares an earlier build of rls with this one. The two builds take
// turns under the same load in one run, so noise of the machine concerns both. The test
// prints a table and asserts no figure.
func TestBeforeAndAfter(t *testing.T) {
	server := redistest.Start(t)
	redis := []*goredis.Client{server.Client(t)}
	limits := filepath.Join(t.TempDir(), "bench.yaml")
	require.NoError(t, os.WriteFile(limits, []byte(benchLimits), 0o644))
	roundPlan := newRounds(t, 2)

	var table strings.Builder
	fmt.Fprintf(&table, "Medians of %d rounds on %d cores, %s.\n\n", roundPlan.number, runtime.NumCPU(), runtime.Version())
	table.WriteString("| backend | in flight | descriptors | figure | before | after | after / before |\n|---|---|---|---|---|---|---|\n")
	for _, backend := range []string{"local", "redis"} {
		var builds []target
		for i, path := range []string{os.Getenv(beforeEnv), os.Getenv(programEnv)} {
			env := []string{"BACKEND_TYPE=" + backend, "LIMITS_PATH=" + limits, "LOG_LEVEL=error", fmt.Sprintf("CACHE_KEY_PREFIX=%d", i)}
			if backend == "redis" {
				env = append(env, "REDIS_URL="+server.Addr)
			}
			cmd, addr := startProgram(t, path, env...)
			builds = append(builds, newTarget(t, []string{"before", "after"}[i], addr, cmd.Process.Pid, redis...))
		}
		for _, load := range []curves.Load{{InFlight: 1, Descriptors: 1, Keys: 10_000}, {InFlight: 64, Descriptors: 1, Keys: 10_000}, {InFlight: 64, Descriptors: 4, Keys: 10_000}} {
			writeRatios(&table, backend, load, roundPlan.measure(builds, load))
		}
	}
	t.Log("\n" + table.String())
}

// writeRatios writes a table row for each figure of one load.
func writeRatios(table *strings.Builder, backend string, load curves.Load, cells []curves.Cell) {
	for _, row := range []struct {
		name   string
		figure curves.Figure
	}{
		{"server CPU, µs", curves.ServerCPU},
		{"Redis CPU, µs", curves.RedisCPU},
		{"p50, µs", curves.P50},
		{"calls/s", curves.PerSecond},
	} {
		if backend == "local" && row.figure == curves.RedisCPU {
			continue
		}
		figureBefore, figureAfter := cells[0].Figures[row.figure].Median, cells[1].Figures[row.figure].Median
		fmt.Fprintf(table, "| %s | %d | %d | %s | %.1f | %.1f | %.2f |\n", backend, load.InFlight, load.Descriptors, row.name, figureBefore, figureAfter, figureAfter/figureBefore)
	}
}

//go:build redis

package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/redistest"
)

// beforeEnv names an earlier build of rls. `make bench-before` sets it.
const beforeEnv = "RLS_BENCH_BEFORE"

// rounds is how often each load runs on each build. The table shows medians.
const rounds = 5

// TestBeforeAndAfter compares an earlier build of rls with this one. The two builds take
// turns under the same load in one run, so noise of the machine concerns both. The test
// prints a table and asserts no figure.
func TestBeforeAndAfter(t *testing.T) {
	redis := redistest.Start(t)
	limits := filepath.Join(t.TempDir(), "bench.yaml")
	require.NoError(t, os.WriteFile(limits, []byte(benchLimits), 0o644))
	builds := []string{os.Getenv(beforeEnv), os.Getenv(programEnv)}

	var table strings.Builder
	fmt.Fprintf(&table, "Medians of %d rounds on %d cores, %s.\n\n", rounds, runtime.NumCPU(), runtime.Version())
	table.WriteString("| backend | in flight | descriptors | figure | before | after | after / before |\n|---|---|---|---|---|---|---|\n")
	for _, backend := range []string{"local", "redis"} {
		var pids [2]int
		var addrs [2]string
		for i, path := range builds {
			env := []string{"BACKEND_TYPE=" + backend, "LIMITS_PATH=" + limits, "LOG_LEVEL=error", fmt.Sprintf("CACHE_KEY_PREFIX=%d", i)}
			if backend == "redis" {
				env = append(env, "REDIS_URL="+redis.Addr)
			}
			cmd, addr := program(t, path, env...)
			pids[i], addrs[i] = cmd.Process.Pid, addr
		}
		for _, l := range []load{{inFlight: 1, descriptors: 1, keys: 10_000}, {inFlight: 64, descriptors: 1, keys: 10_000}, {inFlight: 64, descriptors: 4, keys: 10_000}} {
			var results [2][]figures
			for round := range rounds {
				for turn := range builds {
					i := (round + turn) % len(builds)
					results[i] = append(results[i], run(t, addrs[i], pids[i], []int{redis.PID()}, l, 2*time.Second))
				}
			}
			writeRatios(&table, backend, l, results)
		}
	}
	t.Log("\n" + table.String())
}

// writeRatios writes a table row for each figure of one load.
func writeRatios(table *strings.Builder, backend string, l load, results [2][]figures) {
	for _, f := range []struct {
		name  string
		value func(figures) float64
	}{
		{"server CPU, µs", func(f figures) float64 { return micros(f.serverCPU) }},
		{"Redis CPU, µs", func(f figures) float64 { return micros(f.redisCPU) }},
		{"p50, µs", func(f figures) float64 { return float64(f.p50) / float64(time.Microsecond) }},
		{"calls/s", func(f figures) float64 { return f.perSecond }},
	} {
		if backend == "local" && strings.HasPrefix(f.name, "Redis") {
			continue
		}
		before, after := median(results[0], f.value), median(results[1], f.value)
		fmt.Fprintf(table, "| %s | %d | %d | %s | %.1f | %.1f | %.2f |\n", backend, l.inFlight, l.descriptors, f.name, before, after, after/before)
	}
}

func median(results []figures, value func(figures) float64) float64 {
	values := make([]float64, len(results))
	for i, f := range results {
		values[i] = value(f)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

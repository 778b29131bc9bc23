//go:build redis

package bench

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/test/bench/curves"
)

// Environment variables of the run: the file for the figures, and 1 for a short run.
const (
	curvesEnv = "RLS_BENCH_CURVES"
	quickEnv  = "BENCH_QUICK"
)

// curveLoads returns the loads of the run. In a short run there are fewer keys.
func curveLoads(isShortRun bool) (loads []curves.Load) {
	for _, descriptors := range []int{1, 4} {
		for _, inFlight := range []int{1, 16, 64, 256} {
			loads = append(loads, curves.Load{InFlight: inFlight, Descriptors: descriptors, Keys: curves.DefaultKeys})
		}
	}
	maxKeys := 1_000_000
	if isShortRun {
		maxKeys = 100_000
	}
	for _, keys := range []int{1, maxKeys} {
		loads = append(loads, curves.Load{InFlight: 64, Descriptors: 1, Keys: keys})
	}
	for _, rate := range []int{1000, 2000, 4000, 8000, 12_000, 16_000, 24_000, 32_000} {
		loads = append(loads, curves.Load{Rate: rate, Descriptors: 1, Keys: curves.DefaultKeys})
	}
	for _, rate := range []int{1000, 4000, 8000, 12_000, 16_000} {
		loads = append(loads, curves.Load{Rate: rate, Descriptors: 4, Keys: curves.DefaultKeys})
	}
	for _, load := range []curves.Load{{InFlight: 64, Keys: curves.DefaultKeys}, {Rate: 4000, Keys: 1}} {
		load.Descriptors = 1
		if load.Rate > 0 {
			loads = append(loads, load) // in the default algorithm
		}
		for _, algorithm := range allAlgorithms {
			load.Domain = algorithm
			loads = append(loads, load)
		}
	}
	return loads
}

// TestCurves measures all servers under all loads, and writes the figures to a file. It asserts
// no figure, because machines are noisy.
func TestCurves(t *testing.T) {
	path := os.Getenv(curvesEnv)
	require.NotEmpty(t, path, "run make bench-curves")
	loadPattern := regexp.MustCompile(os.Getenv(loadsEnv))
	isShortRun := os.Getenv(quickEnv) != ""
	peerTargets := peers(t) // first, so that a wrong peer is reported at once
	roundPlan := newRounds(t, 1)
	if isShortRun {
		roundPlan.number, roundPlan.length, roundPlan.warmUp = 1, 300*time.Millisecond, 100*time.Millisecond
	}
	run := &curves.Run{Measured: time.Now().UTC(), Cores: runtime.NumCPU(), Go: runtime.Version(), Rounds: roundPlan.number, Seconds: roundPlan.length.Seconds()}
	run.Pipelines, run.RedisIs = measurePipelines(t, roundPlan)
	if loadPattern.MatchString("exactness") {
		run.Exactness = measureExactness(t, roundPlan)
	}
	if loadPattern.MatchString("memory") {
		run.Memory = measureMemory(t, isShortRun)
	}

	targets := append(startAll(t), peerTargets...)
	saturatedRates := map[string]int{} // lowest such rate, by server and descriptors
	for _, load := range curveLoads(isShortRun) {
		if !loadPattern.MatchString(load.Name()) {
			continue
		}
		var measuredTargets []target
		for _, target := range targets {
			switch {
			case 0 < saturatedRates[loadGroup(target.name, load)] && saturatedRates[loadGroup(target.name, load)] <= load.Rate:
			case load.Domain != "" && !slices.Contains(target.algorithms, load.Domain):
			default:
				measuredTargets = append(measuredTargets, target)
			}
		}
		cells := roundPlan.measure(measuredTargets, load)
		for _, c := range cells {
			if c.Saturated() {
				saturatedRates[loadGroup(c.Server, load)] = load.Rate
			}
			t.Logf("%s: %s: %.0f calls/s, server %.1f µs, Redis %.2f µs, %.3f commands", load.Name(), c.Server, c.Figures[curves.PerSecond].Median,
				c.Figures[curves.ServerCPU].Median, c.Figures[curves.RedisCPU].Median, c.Figures[curves.RedisCommands].Median)
		}
		run.Cells = append(run.Cells, cells...)
	}
	require.NoError(t, run.Write(path))
}

// loadGroup names the open loops of a server that differ only in their rate.
func loadGroup(server string, l curves.Load) string {
	l.Rate = 0
	return server + ": " + l.Name()
}

// startAll starts the servers of a run. Each has a Redis of its own, so that its commands
// and its memory are known. All Redis servers have the same settings.
func startAll(t *testing.T) []target {
	targets := []target{startNothing(t), startRLS(t, curves.Local, "", nil, nil, "BACKEND_TYPE=local")}
	for _, start := range redisServers(t) {
		if startedTarget, ok := start(redistest.Start(t)); ok {
			targets = append(targets, startedTarget)
		}
	}
	return targets
}

// redisServers returns functions that start the servers which count in Redis. A server that is
// not available returns false.
func redisServers(t *testing.T) []func(*redistest.Server) (target, bool) {
	hasLeases := knowsLeases(t)
	if !hasLeases {
		t.Log("this rls has no leases, so they are not measured")
	}
	return []func(*redistest.Server) (target, bool){
		func(s *redistest.Server) (target, bool) {
			return startRLS(t, curves.Redis, "", allAlgorithms, []*goredis.Client{s.Client(t)}, "REDIS_URL="+s.Addr), true
		},
		func(s *redistest.Server) (target, bool) {
			if !hasLeases {
				return target{}, false
			}
			return startLeases(t, s), true
		},
		func(s *redistest.Server) (target, bool) {
			return startIncumbent(t, []*goredis.Client{s.Client(t)}, "REDIS_URL="+s.Addr)
		},
	}
}

func startLeases(t *testing.T, s *redistest.Server) target {
	return startRLS(t, curves.Lease, ", lease: true", leaseAlgorithms, []*goredis.Client{s.Client(t)}, "REDIS_URL="+s.Addr)
}

// measureMemory returns the memory of a key for each server that we start.
func measureMemory(t *testing.T, isShortRun bool) (memories []curves.KeyMemory) {
	load := curves.Load{Descriptors: 1, Keys: 1_000_000}
	if isShortRun {
		load.Keys = 100_000
	}
	measure := func(target target) {
		total := func() (bytes float64) {
			for _, client := range target.redis {
				bytes += usedMemory(t, client)
			}
			return bytes
		}
		server, redis := residentMemory(t, target.pid), total()
		require.NoError(t, target.client.Fill(load))
		keys := float64(load.Keys)
		memories = append(memories, curves.KeyMemory{
			Server: target.name, Keys: load.Keys,
			Bytes: (residentMemory(t, target.pid) - server) / keys, Redis: (total() - redis) / keys,
		})
	}
	t.Run("memory", func(t *testing.T) { measure(startRLS(t, curves.Local, "", nil, nil, "BACKEND_TYPE=local")) })
	for _, start := range redisServers(t) {
		if startedTarget, ok := start(redistest.Start(t)); ok {
			measure(startedTarget)
		}
	}
	return memories
}

// residentMemory returns the memory of a process, in bytes.
func residentMemory(t *testing.T, pid int) (bytes float64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	_, err = fmt.Sscanf(rest, "%f", &bytes)
	require.NoError(t, err)
	return bytes * 1024
}

// measurePipelines returns the CPU time of Redis for pipelines of INCRBY, with one connection
// and with many. It returns the version of Redis too.
func measurePipelines(t *testing.T, roundPlan rounds) (pipelines []curves.Pipeline, version string) {
	client := redistest.Start(t).Client(t)
	_, version, _ = strings.Cut(client.Info(t.Context(), "server").Val(), "redis_version:")
	version, _, _ = strings.Cut(version, "\r")
	type shape struct{ connections, commands int }
	var shapes []shape
	for _, connections := range []int{1, 64} {
		for _, commands := range []int{1, 4, 16, 64, 256} {
			shapes = append(shapes, shape{connections, commands})
		}
	}
	values := map[shape][]float64{}
	for range roundPlan.number {
		for _, s := range shapes {
			values[s] = append(values[s], pipelineCost(t, client.Options().Addr, s.connections, s.commands, roundPlan.length/2))
		}
	}
	for _, s := range shapes {
		pipelines = append(pipelines, curves.Pipeline{Connections: s.connections, Commands: s.commands, Micros: curves.SpreadOf(values[s])})
	}
	return pipelines, version
}

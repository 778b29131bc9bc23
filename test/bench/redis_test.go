//go:build redis

package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/test/bench/curves"
)

// tableEnv is the environment variable with the file of the table.
const tableEnv = "RLS_BENCH_TABLE"

// goal is a load, and the most that rls may use of Redis' CPU, divided by the incumbent's.
type goal struct {
	curves.Load
	redisCPU float64 // 0 for none
}

// goals returns all loads of the table.
func goals() []goal {
	return []goal{
		{curves.Load{InFlight: 1, Descriptors: 1, Keys: 10_000}, 0.9},
		{curves.Load{InFlight: 1, Descriptors: 4, Keys: 10_000}, 0.9},
		{curves.Load{InFlight: 64, Descriptors: 1, Keys: 1}, 0},
		{curves.Load{InFlight: 64, Descriptors: 1, Keys: 10_000}, 0.3},
		{curves.Load{InFlight: 64, Descriptors: 4, Keys: 10_000}, 0.45},
		{curves.Load{InFlight: 256, Descriptors: 1, Keys: 10_000}, 0.25},
		{curves.Load{InFlight: 256, Descriptors: 4, Keys: 10_000}, 0.4},
		{curves.Load{Rate: 1000, Descriptors: 1, Keys: 10_000}, 0.9},
		{curves.Load{Rate: 4000, Descriptors: 1, Keys: 10_000}, 0.9},
		{curves.Load{InFlight: 4, Descriptors: 10, Keys: 10_000}, 0.7},
		{curves.Load{InFlight: 4, Descriptors: 100, Keys: 10_000}, 0.7},
		{curves.Load{InFlight: 4, Descriptors: 1000, Keys: 10_000}, 0.7},
		{curves.Load{InFlight: 64, Descriptors: 1, Keys: 10_000, Domain: "token_bucket"}, 0.6},
		{curves.Load{InFlight: 64, Descriptors: 1, Keys: 10_000, Domain: "sliding_window"}, 0.6},
	}
}

// report writes the table of the loads, and compares ratios with goals.
type report struct {
	table, verdicts strings.Builder
}

func (r *report) addLoad(name string, cells []curves.Cell) {
	for _, c := range cells {
		figure := func(f curves.Figure) float64 { return c.Figures[f].Median }
		fmt.Fprintf(&r.table, "| %s | %s | %.1f | %.1f | %.0f | %.0f | %.0f |\n",
			name, c.Server, figure(curves.ServerCPU), figure(curves.RedisCPU), figure(curves.P50), figure(curves.P99), figure(curves.PerSecond))
	}
}

// compare adds a row with a ratio of medians and its goal. A goal of 0 means that there is none.
func (r *report) compare(title string, cells []curves.Cell, figure curves.Figure, server string, maxRatio float64) {
	medians := map[string]float64{}
	for _, c := range cells {
		medians[c.Server] = c.Figures[figure].Median
	}
	r.compareValues(title, medians[curves.Redis], medians[server], maxRatio)
}

func (r *report) compareValues(title string, got, reference, maxRatio float64) {
	if reference == 0 {
		return
	}
	ratio, verdict := got/reference, "—"
	if maxRatio > 0 {
		verdict = "met"
		if ratio > maxRatio {
			verdict = "**missed**"
		}
	}
	fmt.Fprintf(&r.verdicts, "| %s | %.4g | %.4g | %.2f | %.2f | %s |\n", title, got, reference, ratio, maxRatio, verdict)
}

// TestRedisTable measures a server that does nothing, rls with Redis, and the incumbent with the
// same Redis. It writes the figures as a table. It asserts no figure, because machines are
// noisy.
func TestRedisTable(t *testing.T) {
	loadPattern := regexp.MustCompile(os.Getenv(loadsEnv))
	server := redistest.Start(t)
	redis := []*goredis.Client{server.Client(t)}
	url := "REDIS_URL=" + server.Addr
	roundPlan := newRounds(t, 2)
	targets := []target{startNothing(t), startRLS(t, curves.Redis, "", allAlgorithms, redis, url)}
	if incumbent, ok := startIncumbent(t, redis, url); ok {
		targets = append(targets, incumbent)
	}

	var report report
	for _, goal := range goals() {
		if !loadPattern.MatchString(goal.Name()) {
			continue
		}
		cells := roundPlan.measure(targets, goal.Load)
		report.addLoad(goal.Name(), cells)
		report.compare("Redis CPU, µs: "+goal.Name(), cells, curves.RedisCPU, curves.Incumbent, goal.redisCPU)
		switch goal.Load {
		case curves.Load{InFlight: 64, Descriptors: 1, Keys: 10_000}:
			report.compare("server CPU, µs, against the server that does nothing: "+goal.Name(), cells, curves.ServerCPU, curves.Nothing, 1.1)
		case curves.Load{InFlight: 1, Descriptors: 1, Keys: 10_000}:
			report.compare("p50, µs: "+goal.Name(), cells, curves.P50, curves.Incumbent, 0.9)
		case curves.Load{Rate: 4000, Descriptors: 1, Keys: 10_000}:
			report.compare("p99, µs: "+goal.Name(), cells, curves.P99, curves.Incumbent, 0.6)
		}
	}
	if loadPattern.MatchString("memory") {
		rls, incumbent := keyMemory(t)
		report.compareValues("bytes of a key in Redis", rls, incumbent, 1.05)
	}
	if loadPattern.MatchString("cluster") {
		measureCluster(t, roundPlan, &report)
	}
	text := fmt.Sprintf("Medians of %d rounds of %v, measured %s on %d cores, %s, %s.\n\n", roundPlan.number, roundPlan.length, time.Now().Format("2 January 2006"), runtime.NumCPU(), runtime.Version(), version(t, redis[0]))
	section := "bench-redis"
	if program := os.Getenv(redistest.ProgramEnv); program == "" {
		text += "| load | server | server CPU, µs | Redis CPU, µs | p50, µs | p99, µs | calls/s |\n|---|---|---|---|---|---|---|\n" + report.table.String() + "\n"
	} else {
		section = "bench-" + filepath.Base(program) // the page has only the ratios of other servers
	}
	text += "| figure | rls | against | ratio | goal, at most | result |\n|---|---|---|---|---|---|\n" + report.verdicts.String()
	if os.Getenv(incumbentEnv) == "" {
		text += "\nThe incumbent could not be built here, so nothing is compared with it.\n"
	}
	t.Log("\n" + text)
	if path := os.Getenv(tableEnv); path != "" {
		require.NoError(t, curves.ReplaceSection(path, section, text))
	}
}

// version returns the name and version of a server, such as "Redis 7.0.15" or "Valkey 9.1.2".
func version(t *testing.T, client *goredis.Client) string {
	info := client.InfoMap(t.Context(), "server").Val()["Server"]
	if v := info["valkey_version"]; v != "" {
		return "Valkey " + v
	}
	require.NotEmpty(t, info["redis_version"])
	return "Redis " + info["redis_version"]
}

// measureCluster measures rls and the incumbent with a Cluster of three masters.
func measureCluster(t *testing.T, roundPlan rounds, report *report) {
	cluster := redistest.StartCluster(t, 3, false)
	var redis []*goredis.Client
	for _, s := range cluster.Masters {
		redis = append(redis, s.Client(t))
	}
	env := []string{"REDIS_TYPE=cluster", "REDIS_URL=" + cluster.URL()}
	targets := []target{startRLS(t, curves.Redis, "", allAlgorithms, redis, env...)}
	if incumbent, ok := startIncumbent(t, redis, env...); ok {
		targets = append(targets, incumbent)
	}
	for _, descriptors := range []int{1, 4} {
		l := curves.Load{InFlight: 64, Descriptors: descriptors, Keys: 10_000}
		maxRatio := map[int]float64{1: 0.5}[descriptors]
		cells, name := roundPlan.measure(targets, l), "Cluster of 3, "+l.Name()
		report.addLoad(name, cells)
		report.compare("Redis CPU, µs: "+name, cells, curves.RedisCPU, curves.Incumbent, maxRatio)
	}
}

// keyMemory returns the memory of a key in Redis, in bytes, of rls and the incumbent.
func keyMemory(t *testing.T) (rls, incumbent float64) {
	const keys = 1 << 16 // the hash tables of Redis are then full
	memoryPerKey := func(start func(redis []*goredis.Client, url string) (target, bool)) float64 {
		server := redistest.Start(t)
		client := server.Client(t)
		target, ok := start([]*goredis.Client{client}, "REDIS_URL="+server.Addr)
		if !ok {
			return 0
		}
		memoryBefore := usedMemory(t, client)
		require.NoError(t, target.client.Fill(curves.Load{Descriptors: 1, Keys: keys}))
		require.InDelta(t, keys, client.DBSize(t.Context()).Val(), 10) // probes have keys too
		return (usedMemory(t, client) - memoryBefore) / keys
	}
	rls = memoryPerKey(func(redis []*goredis.Client, url string) (target, bool) {
		return startRLS(t, curves.Redis, "", allAlgorithms, redis, url), true
	})
	incumbent = memoryPerKey(func(redis []*goredis.Client, url string) (target, bool) {
		return startIncumbent(t, redis, url)
	})
	return rls, incumbent
}

// usedMemory returns the memory of the data in Redis, in bytes.
func usedMemory(t *testing.T, client *goredis.Client) (bytes float64) {
	_, rest, _ := strings.Cut(client.Info(t.Context(), "memory").Val(), "used_memory_dataset:")
	_, err := fmt.Sscanf(rest, "%f", &bytes)
	require.NoError(t, err)
	return bytes
}

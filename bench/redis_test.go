//go:build redis

package bench

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/seed-81f232ab/rls/internal/redistest"
)

// Environment variables that make bench-redis sets: the programs to measure, and the file of
// the table. The incumbent's program is empty if it could not be built.
const (
	programEnv   = "RLS_BENCH_PROGRAM"
	incumbentEnv = "RLS_BENCH_INCUMBENT"
	tableEnv     = "RLS_BENCH_TABLE"
)

const (
	perLoad = 2 * time.Second
	warmUp  = 300 * time.Millisecond
)

// load is the load on a server.
type load struct{ inFlight, descriptors, keys int }

// figures are the costs of a request under a load.
type figures struct {
	serverCPU, redisCPU time.Duration
	p50, p99            time.Duration
	perSecond           float64
}

// TestRedisTable measures a server that does nothing, rls with Redis, and the incumbent with the
// same Redis. It writes the figures as a table. It asserts no figure, because machines are
// noisy.
func TestRedisTable(t *testing.T) {
	redis := redistest.Start(t)
	limits := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.MkdirAll(limits, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(limits, "bench.yaml"), []byte(benchLimits), 0o644))

	type target struct {
		name, addr string
		pid        int
	}
	nothing := startServer(t, "nothing-stock")
	rls, rlsAddr := program(t, os.Getenv(programEnv), "REDIS_URL="+redis.Addr, "LIMITS_PATH="+limits, "CACHE_KEY_PREFIX=a", "LOG_LEVEL=error")
	servers := []target{{"does nothing", nothing.addr, nothing.cmd.Process.Pid}, {"rls", rlsAddr, rls.Process.Pid}}
	if path := os.Getenv(incumbentEnv); path != "" {
		incumbent, incumbentAddr := program(t, path,
			"REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redis.Addr, "CACHE_KEY_PREFIX=b", "RUNTIME_ROOT="+filepath.Dir(limits), "RUNTIME_APPDIRECTORY=config",
			"RUNTIME_WATCH_ROOT=false", "USE_STATSD=false", "DISABLE_STATS=true", "LOG_LEVEL=error")
		servers = append(servers, target{"incumbent", incumbentAddr, incumbent.Process.Pid})
	}

	seen := map[string]map[load]figures{}
	var b strings.Builder
	fmt.Fprintf(&b, "Measured %s on %d cores, %s, Redis from the system's packages.\n\n", time.Now().Format("2 January 2006"), runtime.NumCPU(), runtime.Version())
	b.WriteString("| in flight | descriptors | keys | server | server CPU, µs | Redis CPU, µs | p50, µs | p99, µs | requests/s |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, l := range loads() {
		for _, s := range servers {
			f := run(t, s.addr, s.pid, redis.PID(), l)
			if seen[s.name] == nil {
				seen[s.name] = map[load]figures{}
			}
			seen[s.name][l] = f
			fmt.Fprintf(&b, "| %d | %d | %d | %s | %.1f | %.1f | %d | %d | %.0f |\n",
				l.inFlight, l.descriptors, l.keys, s.name, micros(f.serverCPU), micros(f.redisCPU), f.p50.Microseconds(), f.p99.Microseconds(), f.perSecond)
		}
	}
	one, four := clusterLoads(t, limits)
	fmt.Fprintf(&b, "\nrls over a Redis Cluster of 6 masters, 64 in flight, 10,000 keys: p99 %d µs with one descriptor, %d µs with four.\n",
		one.p99.Microseconds(), four.p99.Microseconds())
	goals(&b, seen, one, four)
	t.Log("\n" + b.String())
	if path := os.Getenv(tableEnv); path != "" {
		require.NoError(t, replaceTable(path, b.String()))
	}
}

// clusterLoads measures rls with a Cluster, with one and with four descriptors.
func clusterLoads(t *testing.T, limits string) (one, four figures) {
	cluster := redistest.StartCluster(t, 6, false)
	rls, addr := program(t, os.Getenv(programEnv), "REDIS_TYPE=cluster", "REDIS_URL="+cluster.URL(), "REDIS_TIMEOUT=1s", "LIMITS_PATH="+limits, "LOG_LEVEL=error")
	first := cluster.Masters[0].PID()
	one = run(t, addr, rls.Process.Pid, first, load{64, 1, 10_000})
	four = run(t, addr, rls.Process.Pid, first, load{64, 4, 10_000})
	return one, four
}

func loads() (all []load) {
	for _, inFlight := range []int{1, 64, 256} {
		for _, descriptors := range []int{1, 4} {
			for _, keys := range []int{1, 10_000} {
				all = append(all, load{inFlight, descriptors, keys})
			}
		}
	}
	return all
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// goals compares the figures with the goals.
func goals(b *strings.Builder, seen map[string]map[load]figures, one, four figures) {
	busy, alone := load{64, 1, 10_000}, load{1, 1, 10_000}
	verdict := func(goal string, got, maximum float64) {
		word := "met"
		if got > maximum {
			word = "**missed**"
		}
		fmt.Fprintf(b, "- %s: %.2f, at most %.2f: %s\n", goal, got, maximum, word)
	}
	ratio := func(a, b time.Duration) float64 { return float64(a) / float64(b) }
	b.WriteString("\nGoals, one descriptor, 10,000 keys:\n\n")
	verdict("server CPU at 64 in flight, divided by the CPU of the server that does nothing", ratio(seen["rls"][busy].serverCPU, seen["does nothing"][busy].serverCPU), 1.6)
	if incumbent, ok := seen["incumbent"]; ok {
		verdict("Redis CPU at 64 in flight, divided by the incumbent's", ratio(seen["rls"][busy].redisCPU, incumbent[busy].redisCPU), 0.25)
		verdict("p50 at 1 in flight, divided by the incumbent's", ratio(seen["rls"][alone].p50, incumbent[alone].p50), 1)
	} else {
		b.WriteString("- the incumbent could not be built here, so nothing is compared with it\n")
	}
	verdict("p99 of four descriptors on the Cluster, divided by the p99 of one", ratio(four.p99, one.p99), 3)
}

// run sends the load to the server at addr for perLoad.
func run(t *testing.T, addr string, pid, redisPID int, l load) figures {
	clients := make([]rlsv3.RateLimitServiceClient, connections)
	for i := range clients {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		defer conn.Close()
		clients[i] = rlsv3.NewRateLimitServiceClient(conn)
	}
	requests := make([]*rlsv3.RateLimitRequest, l.keys)
	for i := range requests {
		requests[i] = &rlsv3.RateLimitRequest{Domain: "bench"}
		for d := range l.descriptors {
			requests[i].Descriptors = append(requests[i].Descriptors, &ratelimitv3.RateLimitDescriptor{
				Entries: []*ratelimitv3.RateLimitDescriptor_Entry{
					{Key: "service", Value: "checkout"},
					{Key: "ip", Value: fmt.Sprintf("10.%d.%d.%d", d, i>>8, i&255)},
				},
			})
		}
	}
	send := func(d time.Duration) []time.Duration {
		took := make([][]time.Duration, l.inFlight)
		until := time.Now().Add(d)
		var workers sync.WaitGroup
		for w := range l.inFlight {
			workers.Go(func() {
				for i := w * 7919; ; i++ {
					start := time.Now()
					if start.After(until) {
						return
					}
					_, err := clients[w%connections].ShouldRateLimit(context.Background(), requests[i%l.keys])
					if err != nil {
						t.Error(err)
						return
					}
					took[w] = append(took[w], time.Since(start))
				}
			})
		}
		workers.Wait()
		return slices.Concat(took...)
	}
	send(warmUp)
	serverCPU, redisCPU, start := cpuOf(t, pid), cpuOf(t, redisPID), time.Now()
	took := send(perLoad)
	require.NotEmpty(t, took)
	n, elapsed := time.Duration(len(took)), time.Since(start)
	slices.Sort(took)
	return figures{
		serverCPU: (cpuOf(t, pid) - serverCPU) / n,
		redisCPU:  (cpuOf(t, redisPID) - redisCPU) / n,
		p50:       took[len(took)/2],
		p99:       took[len(took)*99/100],
		perSecond: float64(len(took)) / elapsed.Seconds(),
	}
}

// program starts a rate-limit service on free loopback ports.
func program(t *testing.T, path string, env ...string) (cmd *exec.Cmd, addr string) {
	require.NotEmpty(t, path, "run make bench-redis")
	addr = freeAddr(t)
	cmd = exec.CommandContext(t.Context(), path)
	cmd.Env = append(env, "HOME="+t.TempDir(), "GRPC_HOST=127.0.0.1", "HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1",
		"GRPC_PORT="+portOf(addr), "PORT="+portOf(freeAddr(t)), "DEBUG_PORT="+portOf(freeAddr(t)))
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	require.Eventually(t, func() bool {
		_, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "none", Descriptors: []*ratelimitv3.RateLimitDescriptor{{}}})
		return err == nil
	}, 20*time.Second, 50*time.Millisecond, "%s does not answer", path)
	return cmd, addr
}

// freeAddr returns an address that no server uses now.
func freeAddr(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func portOf(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }

// replaceTable replaces the text between the marks in the file at path with table.
func replaceTable(path, table string) error {
	const begin, end = "<!-- bench-redis -->\n", "<!-- /bench-redis -->"
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, rest, found := strings.Cut(string(page), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		return fmt.Errorf("%s has no marks %s and %s", path, strings.TrimSpace(begin), end)
	}
	return os.WriteFile(path, []byte(head+begin+table+end+tail), 0o644)
}

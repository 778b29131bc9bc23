//go:build redis

package bench

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/test/bench/curves"
	"github.com/seed-81f232ab/rls/test/bench/load"
)

// Environment variables that make sets: the programs to measure, and the peers. The incumbent's
// program is empty if it could not be built. A peer is
// name=host:port[,pid=N][,redis=host:port]. Peers have a semicolon or a space between them.
const (
	programEnv   = "RLS_BENCH_PROGRAM"
	incumbentEnv = "RLS_BENCH_INCUMBENT"
	peersEnv     = "RLS_BENCH_PEERS"
)

// target is a server to measure.
type target struct {
	name       string
	client     *load.Client
	pid        int               // 0 if unknown
	redis      []*goredis.Client // of the Redis servers that the server uses
	algorithms []string          // domains that the server has besides bench
}

// withKnownDomain returns l with a domain that the server knows.
func (t target) withKnownDomain(l curves.Load) curves.Load {
	if !slices.Contains(t.algorithms, l.Domain) {
		l.Domain = ""
	}
	return l
}

// newTarget returns a target at addr. The client ends with the test.
func newTarget(t *testing.T, name, addr string, pid int, redis ...*goredis.Client) target {
	client, err := load.Dial(addr)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return target{name: name, client: client, pid: pid, redis: redis}
}

// startNothing starts a server that does nothing.
func startNothing(t *testing.T) target {
	server := startServer(t, "nothing-stock")
	return newTarget(t, curves.Nothing, server.addr, server.cmd.Process.Pid)
}

// The domains that rls has besides bench. Each has the limits of bench, with this algorithm.
var (
	allAlgorithms   = []string{"token_bucket", "sliding_window", "sliding_log", "first_hit_window"}
	leaseAlgorithms = []string{"token_bucket"}
)

// startRLS starts rls with the domain bench and a domain for each algorithm. fields are added to
// each limit.
func startRLS(t *testing.T, name, fields string, algorithms []string, redis []*goredis.Client, env ...string) target {
	folder := t.TempDir()
	for _, domain := range append([]string{"bench"}, algorithms...) {
		rule := fields
		if domain != "bench" {
			rule += ", algorithm: " + domain
		}
		text := strings.Replace(benchLimits, "domain: bench", "domain: "+domain, 1)
		text = strings.ReplaceAll(text, "}", rule+"}")
		require.NoError(t, os.WriteFile(filepath.Join(folder, domain+".yaml"), []byte(text), 0o644))
	}
	cmd, addr := startProgram(t, os.Getenv(programEnv), append(env, "LIMITS_PATH="+folder, "CACHE_KEY_PREFIX=a",
		"LOG_LEVEL=error", "REDIS_TIMEOUT=1s", "MAX_DESCRIPTORS=4096", "LOCAL_MAX_KEYS=2000000")...)
	rlsTarget := newTarget(t, name, addr, cmd.Process.Pid, redis...)
	rlsTarget.algorithms = algorithms
	return rlsTarget
}

// startIncumbent starts the incumbent, or returns false if it could not be built. Its settings
// for pipelines keep their defaults. With a single Redis they have no effect.
func startIncumbent(t *testing.T, redis []*goredis.Client, env ...string) (target, bool) {
	path := os.Getenv(incumbentEnv)
	if path == "" {
		return target{}, false
	}
	folder := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(folder, "config"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "config", "bench.yaml"), []byte(benchLimits), 0o644))
	cmd, addr := startProgram(t, path, append(env, "REDIS_SOCKET_TYPE=tcp", "CACHE_KEY_PREFIX=b", "RUNTIME_ROOT="+folder, "RUNTIME_APPDIRECTORY=config",
		"RUNTIME_WATCH_ROOT=false", "USE_STATSD=false", "DISABLE_STATS=true", "LOG_LEVEL=error")...)
	return newTarget(t, curves.Incumbent, addr, cmd.Process.Pid, redis...), true
}

// peers returns the servers that the user has started.
func peers(t *testing.T) (targets []target) {
	for _, text := range strings.FieldsFunc(os.Getenv(peersEnv), func(r rune) bool { return r == ' ' || r == ';' }) {
		name, rest, ok := strings.Cut(text, "=")
		require.True(t, ok, "peer %q: want name=host:port[,pid=N][,redis=host:port]", text)
		options := strings.Split(rest, ",")
		peer := newTarget(t, name, options[0], 0)
		for _, option := range options[1:] {
			key, value, _ := strings.Cut(option, "=")
			switch key {
			case "pid":
				pid, err := strconv.Atoi(value)
				require.NoError(t, err, "peer %s: pid", name)
				peer.pid = pid
			case "redis":
				client := goredis.NewClient(&goredis.Options{Addr: value})
				t.Cleanup(func() { client.Close() })
				require.NoError(t, client.Ping(t.Context()).Err(), "peer %s: redis", name)
				peer.redis = append(peer.redis, client)
			default:
				require.Fail(t, "unknown option of a peer", "peer %s: got option %q, want pid or redis", name, key)
			}
		}
		require.NoError(t, awaitAnswer(t, peer.client), "peer %s", name)
		targets = append(targets, peer)
	}
	return targets
}

// startProgram starts a rate-limit service on free loopback ports.
func startProgram(t *testing.T, path string, env ...string) (cmd *exec.Cmd, addr string) {
	require.NotEmpty(t, path, "run this test by make, see make help")
	addr = freeAddr(t)
	cmd = exec.CommandContext(t.Context(), path)
	cmd.Env = append(env, "HOME="+t.TempDir(), "GRPC_HOST=127.0.0.1", "HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1",
		"GRPC_PORT="+portOf(addr), "PORT="+portOf(freeAddr(t)), "DEBUG_PORT="+portOf(freeAddr(t)))
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	client, err := load.Dial(addr)
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, awaitAnswer(t, client), path)
	return cmd, addr
}

func awaitAnswer(t *testing.T, client *load.Client) error {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return client.Ready(ctx)
}

// freeAddr returns an address that no server uses now.
func freeAddr(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().String()
}

func portOf(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }

// knowsLeases reports whether the program accepts lease: true.
func knowsLeases(t *testing.T) bool {
	path := filepath.Join(t.TempDir(), "lease.yaml")
	text := strings.ReplaceAll(benchLimits, "}", ", lease: true}")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return exec.CommandContext(t.Context(), os.Getenv(programEnv), "check", path).Run() == nil
}

// redisFigures returns the CPU time of Redis in microseconds, and its numbers of commands and
// reads.
func redisFigures(t *testing.T, servers []*goredis.Client) (micros, commands, reads float64) {
	for _, client := range servers {
		info := client.Info(t.Context()).Val() // Redis 6 returns one section or all
		field := func(name string) (value float64) {
			_, rest, found := strings.Cut(info, "\n"+name+":")
			require.True(t, found, "INFO of Redis has no %s", name)
			_, err := fmt.Sscanf(rest, "%f", &value)
			require.NoError(t, err)
			return value
		}
		micros += 1e6 * (field("used_cpu_sys") + field("used_cpu_user"))
		commands += field("total_commands_processed")
		reads += field("total_reads_processed")
	}
	return micros, commands, reads
}

// numberFromEnv returns the number in an environment variable, or defaultValue if it is not set.
func numberFromEnv(t *testing.T, name string, defaultValue float64) float64 {
	value, err := strconv.ParseFloat(cmp.Or(os.Getenv(name), strconv.FormatFloat(defaultValue, 'g', -1, 64)), 64)
	require.NoError(t, err, name)
	return value
}

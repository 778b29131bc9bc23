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
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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

// Environment variables for short runs: the number of rounds, the seconds of a load, and a
// regular expression that selects loads by name.
const (
	roundsEnv  = "RLS_BENCH_ROUNDS"
	secondsEnv = "RLS_BENCH_SECONDS"
	loadsEnv   = "RLS_BENCH_LOADS"
)

const warmUp = 300 * time.Millisecond

// load is the load on a server. Callers keep inFlight calls in flight. If rate is set, a call
// starts each 1/rate seconds instead, whether or not others are answered.
type load struct {
	inFlight, descriptors, keys int
	rate                        int    // calls in a second
	domain                      string // of rls; default bench
}

// name returns the load in words, for the table.
func (l load) name() string {
	name := fmt.Sprintf("%d in flight", l.inFlight)
	if l.rate > 0 {
		name = fmt.Sprintf("%d calls/s, open loop", l.rate)
	}
	name += fmt.Sprintf(", %d descriptors", l.descriptors)
	if l.keys == 1 {
		name += ", 1 key"
	}
	if l.domain != "" {
		name += ", " + l.domain
	}
	return name
}

// figures are the costs of a call under a load.
type figures struct {
	serverCPU, redisCPU time.Duration
	p50, p99            time.Duration
	perSecond           float64
}

// goal is a load, and the most that rls may use of Redis' CPU, divided by the incumbent's.
type goal struct {
	load
	redisCPU float64 // 0 for none
}

// goals returns all loads of the table.
func goals() []goal {
	return []goal{
		{load{inFlight: 1, descriptors: 1, keys: 10_000}, 0.9},
		{load{inFlight: 1, descriptors: 4, keys: 10_000}, 0.9},
		{load{inFlight: 64, descriptors: 1, keys: 1}, 0},
		{load{inFlight: 64, descriptors: 1, keys: 10_000}, 0.3},
		{load{inFlight: 64, descriptors: 4, keys: 10_000}, 0.45},
		{load{inFlight: 256, descriptors: 1, keys: 10_000}, 0.25},
		{load{inFlight: 256, descriptors: 4, keys: 10_000}, 0.4},
		{load{rate: 1000, descriptors: 1, keys: 10_000}, 0.9},
		{load{rate: 4000, descriptors: 1, keys: 10_000}, 0.9},
		{load{inFlight: 4, descriptors: 10, keys: 10_000}, 0.7},
		{load{inFlight: 4, descriptors: 100, keys: 10_000}, 0.7},
		{load{inFlight: 4, descriptors: 1000, keys: 10_000}, 0.7},
		{load{inFlight: 64, descriptors: 1, keys: 10_000, domain: "token_bucket"}, 0.6},
		{load{inFlight: 64, descriptors: 1, keys: 10_000, domain: "sliding_window"}, 0.6},
	}
}

// target is a server to measure.
type target struct {
	name, addr string
	pid        int
	ownDomains bool // the server knows the domains of the loads
}

// own returns l with a domain that the server knows.
func (t target) own(l load) load {
	if l.domain == "" || !t.ownDomains {
		l.domain = "bench"
	}
	return l
}

// bench has the servers of a run and the processes of their Redis.
type bench struct {
	t         *testing.T
	targets   []target
	redisPIDs []int
	limits    string // folder of the limits that all servers read
	rounds    int
	perLoad   time.Duration
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, rounds: 5, perLoad: 2 * time.Second, limits: filepath.Join(t.TempDir(), "config")}
	if n, err := strconv.Atoi(os.Getenv(roundsEnv)); err == nil {
		b.rounds = n
	}
	if seconds, err := strconv.ParseFloat(os.Getenv(secondsEnv), 64); err == nil {
		b.perLoad = time.Duration(seconds * float64(time.Second))
	}
	require.NoError(t, os.MkdirAll(b.limits, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(b.limits, "bench.yaml"), []byte(benchLimits), 0o644))
	return b
}

// startRLS starts rls with the limits of all domains.
func (b *bench) startRLS(env ...string) {
	own := b.t.TempDir()
	for domain, algorithm := range map[string]string{"bench": "fixed_window", "token_bucket": "token_bucket", "sliding_window": "sliding_window"} {
		text := strings.Replace(benchLimits, "domain: bench", "domain: "+domain, 1)
		text = strings.Replace(text, "1000000}", "1000000, algorithm: "+algorithm+"}", 1)
		require.NoError(b.t, os.WriteFile(filepath.Join(own, domain+".yaml"), []byte(text), 0o644))
	}
	cmd, addr := program(b.t, os.Getenv(programEnv), append(env, "LIMITS_PATH="+own, "CACHE_KEY_PREFIX=a", "LOG_LEVEL=error", "REDIS_TIMEOUT=1s", "MAX_DESCRIPTORS=4096")...)
	b.targets = append(b.targets, target{"rls", addr, cmd.Process.Pid, true})
}

// startIncumbent starts the incumbent, if it could be built.
func (b *bench) startIncumbent(env ...string) {
	path := os.Getenv(incumbentEnv)
	if path == "" {
		return
	}
	cmd, addr := program(b.t, path, append(env, "REDIS_SOCKET_TYPE=tcp", "CACHE_KEY_PREFIX=b", "RUNTIME_ROOT="+filepath.Dir(b.limits), "RUNTIME_APPDIRECTORY=config",
		"RUNTIME_WATCH_ROOT=false", "USE_STATSD=false", "DISABLE_STATS=true", "LOG_LEVEL=error")...)
	b.targets = append(b.targets, target{"incumbent", addr, cmd.Process.Pid, false})
}

// measure runs l on each server in turn, in all rounds, and returns the median figures of each
// server.
func (b *bench) measure(l load) map[string]figures {
	results := map[string][]figures{}
	for _, target := range b.targets { // all keys exist in the rounds
		send(b.t, target.addr, target.own(l), 0)
	}
	for round := range b.rounds {
		for turn := range b.targets {
			target := b.targets[(round+turn)%len(b.targets)]
			results[target.name] = append(results[target.name], run(b.t, target.addr, target.pid, b.redisPIDs, target.own(l), b.perLoad))
		}
	}
	medians := map[string]figures{}
	for name, all := range results {
		medians[name] = medianFigures(all)
	}
	return medians
}

func medianFigures(all []figures) figures {
	duration := func(value func(figures) time.Duration) time.Duration {
		return time.Duration(median(all, func(f figures) float64 { return float64(value(f)) }))
	}
	return figures{
		serverCPU: duration(func(f figures) time.Duration { return f.serverCPU }),
		redisCPU:  duration(func(f figures) time.Duration { return f.redisCPU }),
		p50:       duration(func(f figures) time.Duration { return f.p50 }),
		p99:       duration(func(f figures) time.Duration { return f.p99 }),
		perSecond: median(all, func(f figures) float64 { return f.perSecond }),
	}
}

// report writes the table of the loads, and compares ratios with goals.
type report struct {
	table, verdicts strings.Builder
}

func (r *report) addLoad(name string, targets []target, seen map[string]figures) {
	for _, t := range targets {
		f := seen[t.name]
		fmt.Fprintf(&r.table, "| %s | %s | %.1f | %.1f | %d | %d | %.0f |\n",
			name, t.name, micros(f.serverCPU), micros(f.redisCPU), f.p50.Microseconds(), f.p99.Microseconds(), f.perSecond)
	}
}

// compare adds a row with a ratio and its goal. A goal of 0 means that there is none.
func (r *report) compare(figure string, got, against, most float64) {
	if against == 0 {
		return
	}
	ratio, verdict := got/against, "—"
	if most > 0 {
		verdict = "met"
		if ratio > most {
			verdict = "**missed**"
		}
	}
	fmt.Fprintf(&r.verdicts, "| %s | %.4g | %.4g | %.2f | %.2f | %s |\n", figure, got, against, ratio, most, verdict)
}

// TestRedisTable measures a server that does nothing, rls with Redis, and the incumbent with the
// same Redis. It writes the figures as a table. It asserts no figure, because machines are
// noisy.
func TestRedisTable(t *testing.T) {
	selected := regexp.MustCompile(os.Getenv(loadsEnv))
	redis := redistest.Start(t)
	b := newBench(t)
	b.redisPIDs = []int{redis.PID()}
	nothing := startServer(t, "nothing-stock")
	b.targets = []target{{"does nothing", nothing.addr, nothing.cmd.Process.Pid, false}}
	b.startRLS("REDIS_URL=" + redis.Addr)
	b.startIncumbent("REDIS_URL=" + redis.Addr)

	var r report
	for _, g := range goals() {
		if !selected.MatchString(g.name()) {
			continue
		}
		seen := b.measure(g.load)
		t.Log(g.name(), "Redis CPU", seen["rls"].redisCPU, seen["incumbent"].redisCPU)
		r.addLoad(g.name(), b.targets, seen)
		rls, incumbent := seen["rls"], seen["incumbent"]
		r.compare("Redis CPU, µs: "+g.name(), micros(rls.redisCPU), micros(incumbent.redisCPU), g.redisCPU)
		switch g.load {
		case load{inFlight: 64, descriptors: 1, keys: 10_000}:
			r.compare("server CPU, µs, against the server that does nothing: "+g.name(), micros(rls.serverCPU), micros(seen["does nothing"].serverCPU), 1.1)
		case load{inFlight: 1, descriptors: 1, keys: 10_000}:
			r.compare("p50, µs: "+g.name(), micros(rls.p50), micros(incumbent.p50), 0.9)
		case load{rate: 4000, descriptors: 1, keys: 10_000}:
			r.compare("p99, µs: "+g.name(), micros(rls.p99), micros(incumbent.p99), 0.6)
		}
	}
	if selected.MatchString("memory") {
		rls, incumbent := keyMemory(t)
		r.compare("bytes of a key in Redis", rls, incumbent, 1.05)
	}
	if selected.MatchString("cluster") {
		measureCluster(t, &r)
	}
	text := fmt.Sprintf("Medians of %d rounds, measured %s on %d cores, %s, Redis from the system's packages.\n\n", b.rounds, time.Now().Format("2 January 2006"), runtime.NumCPU(), runtime.Version()) +
		"| load | server | server CPU, µs | Redis CPU, µs | p50, µs | p99, µs | calls/s |\n|---|---|---|---|---|---|---|\n" + r.table.String() +
		"\n| figure | rls | against | ratio | goal, at most | result |\n|---|---|---|---|---|---|\n" + r.verdicts.String()
	if os.Getenv(incumbentEnv) == "" {
		text += "\nThe incumbent could not be built here, so nothing is compared with it.\n"
	}
	t.Log("\n" + text)
	if path := os.Getenv(tableEnv); path != "" {
		require.NoError(t, replaceTable(path, text))
	}
}

// measureCluster measures rls and the incumbent with a Cluster of three masters.
func measureCluster(t *testing.T, r *report) {
	cluster := redistest.StartCluster(t, 3, false)
	b := newBench(t)
	for _, s := range cluster.Masters {
		b.redisPIDs = append(b.redisPIDs, s.PID())
	}
	b.startRLS("REDIS_TYPE=cluster", "REDIS_URL="+cluster.URL())
	b.startIncumbent("REDIS_TYPE=cluster", "REDIS_URL="+cluster.URL())
	for _, descriptors := range []int{1, 4} {
		l := load{inFlight: 64, descriptors: descriptors, keys: 10_000}
		most := map[int]float64{1: 0.5}[descriptors]
		seen, name := b.measure(l), "Cluster of 3, "+l.name()
		r.addLoad(name, b.targets, seen)
		r.compare("Redis CPU, µs: "+name, micros(seen["rls"].redisCPU), micros(seen["incumbent"].redisCPU), most)
	}
}

// keyMemory returns the memory of a key in Redis, in bytes, of rls and the incumbent.
func keyMemory(t *testing.T) (rls, incumbent float64) {
	memory := func(start func(*bench, ...string)) float64 {
		redis := redistest.Start(t)
		b := newBench(t)
		start(b, "REDIS_URL="+redis.Addr)
		if len(b.targets) == 0 {
			return 0
		}
		used := func() float64 {
			var bytes float64
			_, rest, _ := strings.Cut(redis.Client(t).Info(t.Context(), "memory").Val(), "used_memory_dataset:")
			_, err := fmt.Sscanf(rest, "%f", &bytes)
			require.NoError(t, err)
			return bytes
		}
		const keys = 1 << 16 // the hash tables of Redis are then full
		before := used()
		send(t, b.targets[0].addr, load{inFlight: 64, descriptors: 1, keys: keys, domain: "bench"}, 0)
		require.InDelta(t, keys, redis.Client(t).DBSize(t.Context()).Val(), 10) // probes have keys too
		return (used() - before) / keys
	}
	return memory((*bench).startRLS), memory((*bench).startIncumbent)
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// run sends the load to the server at addr for a time, and returns the cost of a call.
func run(t *testing.T, addr string, pid int, redisPIDs []int, l load, d time.Duration) figures {
	redisCPU := func() (sum time.Duration) {
		for _, pid := range redisPIDs {
			sum += cpuOf(t, pid)
		}
		return sum
	}
	send(t, addr, l, warmUp)
	server, redis, start := cpuOf(t, pid), redisCPU(), time.Now()
	took := send(t, addr, l, d)
	require.NotEmpty(t, took)
	n, elapsed := time.Duration(len(took)), time.Since(start)
	slices.Sort(took)
	return figures{
		serverCPU: (cpuOf(t, pid) - server) / n,
		redisCPU:  (redisCPU() - redis) / n,
		p50:       took[len(took)/2],
		p99:       took[len(took)*99/100],
		perSecond: float64(len(took)) / elapsed.Seconds(),
	}
}

// send sends the load to the server at addr for a time, or each key once if d is 0. It returns
// how long each call took, in an open loop from the time at which the call was due.
func send(t *testing.T, addr string, l load, d time.Duration) []time.Duration {
	clients := make([]rlsv3.RateLimitServiceClient, connections)
	for i := range clients {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		defer conn.Close()
		clients[i] = rlsv3.NewRateLimitServiceClient(conn)
	}
	requests := benchRequests(l)
	var mu sync.Mutex
	var took []time.Duration
	var workers sync.WaitGroup
	until := time.Now().Add(d)
	call := func(i int, due time.Time) bool {
		if _, err := clients[i%connections].ShouldRateLimit(context.Background(), requests[i%len(requests)]); err != nil {
			t.Error(err)
			return false
		}
		return true
	}
	if l.rate > 0 && d > 0 {
		for i, due := 0, time.Now(); due.Before(until); i, due = i+1, due.Add(time.Second/time.Duration(l.rate)) {
			time.Sleep(time.Until(due))
			workers.Go(func() {
				if call(i*7919, due) {
					mu.Lock()
					defer mu.Unlock()
					took = append(took, time.Since(due))
				}
			})
		}
		workers.Wait()
		return took
	}
	var next atomic.Int64
	for w := range max(l.inFlight, 1) {
		workers.Go(func() {
			var mine []time.Duration
			for i := w * 7919; ; i++ {
				start := time.Now()
				if d == 0 {
					i = int(next.Add(1)) - 1
				}
				if d == 0 && i >= len(requests) || d > 0 && start.After(until) || !call(i, start) {
					break
				}
				mine = append(mine, time.Since(start))
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, mine...)
		})
	}
	workers.Wait()
	return took
}

// benchRequests returns requests whose descriptors have l.keys keys in all places. A request of
// ten or more descriptors shares its keys with no other.
func benchRequests(l load) []*rlsv3.RateLimitRequest {
	n := l.keys
	if l.descriptors >= 10 {
		n = max(l.keys/l.descriptors, 1)
	}
	requests := make([]*rlsv3.RateLimitRequest, n)
	for i := range requests {
		requests[i] = &rlsv3.RateLimitRequest{Domain: cmp.Or(l.domain, "bench")}
		for d := range l.descriptors {
			requests[i].Descriptors = append(requests[i].Descriptors, &ratelimitv3.RateLimitDescriptor{
				Entries: []*ratelimitv3.RateLimitDescriptor_Entry{
					{Key: "service", Value: "checkout"},
					{Key: "ip", Value: fmt.Sprintf("10.%d.%d.%d", d, i>>8, i&255)},
				},
			})
		}
	}
	return requests
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

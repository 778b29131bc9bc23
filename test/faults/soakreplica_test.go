//go:build soak

package faults

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
)

const (
	soakCallers   = 4 // of each replica
	soakPause     = 20 * time.Millisecond
	soakKeys      = 200 // of each rule
	soakSampling  = time.Second
	soakCallLimit = 5 * time.Second // the longest wait for an answer, on a busy machine
)

// soakGauge is a gauge that must not grow by more than a factor and a margin, in units.
type soakGauge struct {
	metric               string
	unit, growth, margin float64
}

var soakGauges = []soakGauge{
	{"go_goroutines", 1, 1.1, 10},
	{"process_open_fds", 1, 1.1, 5},
	{"go_memstats_heap_alloc_bytes", 1 << 20, 1.1, 1},
	{"process_resident_memory_bytes", 1 << 20, 1.15, 4},
}

// soakSample is the metrics of a replica at a time, after a garbage collection.
type soakSample struct {
	gauges    map[string]float64
	decisions map[string]float64 // by source
}

func median(samples []soakSample, metric string) float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = s.gauges[metric]
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// soakReplica is a running rls with its callers and an open live page.
type soakReplica struct {
	t           *testing.T
	cmd         *exec.Cmd
	logPath     string
	grpc, debug string
	goroutines  sync.WaitGroup

	calls, failed, events atomic.Int64
	failure               atomic.Value // the first error of a call
	samples               []soakSample // may be read when running is done
}

var soakListening = regexp.MustCompile(`msg=listening grpc=(\S+) http=\S+ debug=(\S+)`)

func startSoakReplica(t *testing.T, program, limits, redisAddr string) *soakReplica {
	r := &soakReplica{t: t, cmd: exec.Command(program, "serve", "--limits", limits), logPath: filepath.Join(t.TempDir(), "log")}
	log, err := os.Create(r.logPath)
	require.NoError(t, err)
	defer log.Close()
	r.cmd.Stdout, r.cmd.Stderr = log, log
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	r.cmd.Env = []string{
		"GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "HOST=127.0.0.1", "PORT=0", "DEBUG_PORT=0", "REDIS_URL=" + redisAddr,
		"DRAIN_DELAY=0s",
	}
	require.NoError(t, r.cmd.Start())
	t.Cleanup(func() { _ = r.cmd.Process.Kill() })
	polltest.Until(t, 30*time.Second, func() bool {
		m := soakListening.FindStringSubmatch(r.log(t))
		if m != nil {
			r.grpc, r.debug = m[1], "http://"+m[2]
		}
		return m != nil
	}, "a listening replica")
	return r
}

func (r *soakReplica) log(t *testing.T) string {
	text, err := os.ReadFile(r.logPath)
	require.NoError(t, err)
	return string(text)
}

// end stops the replica as a deployment does, and returns its log.
func (r *soakReplica) end(t *testing.T) string {
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, r.cmd.Wait(), r.log(t))
	return r.log(t)
}

// begin starts the load, the reader of the live page and the samples. They end with ctx.
func (r *soakReplica) begin(ctx context.Context) {
	conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { conn.Close() })
	client := rlsv3.NewRateLimitServiceClient(conn)
	for caller := range soakCallers {
		r.callEvery(ctx, soakPause, func(n int) { r.call(client, n*soakCallers+caller) })
	}
	r.callEvery(ctx, soakSampling, func(int) {
		s, err := r.sample(ctx)
		if ctx.Err() == nil && assert.NoError(r.t, err) {
			r.samples = append(r.samples, s)
		}
	})
	r.goroutines.Go(func() { r.readLivePage(ctx) })
}

// callEvery calls f with 0, 1, 2 and so on until ctx is done.
func (r *soakReplica) callEvery(ctx context.Context, pause time.Duration, f func(n int)) {
	r.goroutines.Go(func() {
		ticks := time.NewTicker(pause)
		defer ticks.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
				f(n)
			}
		}
	})
}

// call sends a request with a descriptor for each rule.
func (r *soakReplica) call(client rlsv3.RateLimitServiceClient, n int) {
	ctx, cancel := context.WithTimeout(context.Background(), soakCallLimit)
	defer cancel()
	req := &rlsv3.RateLimitRequest{Domain: "soak"}
	for _, key := range []string{"counted", "scripted", "leased"} {
		entry := &ratelimitv3.RateLimitDescriptor_Entry{Key: key, Value: strconv.Itoa(n % soakKeys)}
		if key == "leased" {
			entry.Value = "one" // a lease needs many hits on a key
		}
		req.Descriptors = append(req.Descriptors, &ratelimitv3.RateLimitDescriptor{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{entry}})
	}
	resp, err := client.ShouldRateLimit(ctx, req)
	r.calls.Add(1)
	if err == nil && len(resp.Statuses) != len(req.Descriptors) {
		err = fmt.Errorf("statuses: got %d, want %d", len(resp.Statuses), len(req.Descriptors))
	}
	if err != nil {
		r.failed.Add(1)
		r.failure.CompareAndSwap(nil, err.Error())
	}
}

// readLivePage counts the events of the live page. The stream must not end before ctx does.
func (r *soakReplica) readLivePage(ctx context.Context) {
	stream, err := r.get(ctx, "/live/stream")
	if !assert.NoError(r.t, err) {
		return
	}
	defer stream.Body.Close()
	lines := bufio.NewScanner(stream.Body)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "data:") {
			r.events.Add(1)
		}
	}
	assert.Error(r.t, ctx.Err(), "the live page ended: %v", lines.Err())
}

func (r *soakReplica) get(ctx context.Context, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.debug+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.Join(fmt.Errorf("%s: %s", path, resp.Status), resp.Body.Close())
	}
	return resp, err
}

// sample collects garbage in the replica, and returns its metrics.
func (r *soakReplica) sample(ctx context.Context) (soakSample, error) {
	s := soakSample{decisions: map[string]float64{}}
	resp, err := r.get(ctx, "/debug/pprof/heap?gc=1")
	if err != nil {
		return s, err
	}
	_ = resp.Body.Close()
	if resp, err = r.get(ctx, "/metrics"); err != nil {
		return s, err
	}
	defer resp.Body.Close()
	if s.gauges, err = readMetrics(resp.Body); err != nil {
		return s, err
	}
	for name, value := range s.gauges {
		if m := decisionsBySource.FindStringSubmatch(name); m != nil {
			s.decisions[m[1]] += value
		}
	}
	return s, nil
}

var decisionsBySource = regexp.MustCompile(`^rls_decisions_total\{.*source="(\w+)"`)

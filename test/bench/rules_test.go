//go:build redis

package bench

import (
	"fmt"
	"os"
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
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// The load of TestManyRules. The p99 is taken of each latencyStep.
const (
	manyRules   = 100_000
	rulesRate   = 2000 // calls in a second
	latencyStep = 250 * time.Millisecond
)

// TestManyRules loads many rules, calls them, and changes all of them while calls go on. It
// prints the memory after each step, the time of a load, and the p99 around the reload.
func TestManyRules(t *testing.T) {
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	writeManyRules(t, limits, 9)
	yesterday := time.Now().AddDate(0, 0, -1)
	require.NoError(t, os.Chtimes(limits, yesterday, yesterday)) // few files change just before the start
	start := time.Now()
	cmd, addr := startProgram(t, os.Getenv(programEnv), "LIMITS_PATH="+limits, "LOG_LEVEL=warn")
	t.Logf("load: %.2f s until the first answer", time.Since(start).Seconds())
	logMemory := func(step string) {
		t.Logf("%s: RSS %.0f MB, maximum %.0f MB", step, procStatus(t, cmd.Process.Pid, "VmRSS"), procStatus(t, cmd.Process.Pid, "VmHWM"))
	}
	logMemory("after load")

	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	client := rlsv3.NewRateLimitServiceClient(conn)
	call := func(i int) *rlsv3.RateLimitResponse {
		response, err := client.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
			Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "k", Value: "v" + strconv.Itoa(i%manyRules)}},
		}}})
		if err != nil {
			t.Error(err)
			return nil
		}
		return response
	}
	const timeBeforeChange, totalTime = 5 * time.Second, 15 * time.Second
	begin := time.Now()
	writeManyRules(t, limits+".new", 10)
	var changeTime, reloadTime atomic.Int64 // microseconds since begin
	time.AfterFunc(timeBeforeChange, func() {
		_ = os.Rename(limits+".new", limits)
		_ = cmd.Process.Signal(syscall.SIGHUP)
		changeTime.Store(time.Since(begin).Microseconds())
	})
	var mu sync.Mutex
	steps := make([][]time.Duration, totalTime/latencyStep)
	var calls sync.WaitGroup
	for i := range int(totalTime.Seconds() * rulesRate) {
		sendTime := begin.Add(time.Duration(i) * time.Second / rulesRate)
		time.Sleep(time.Until(sendTime))
		calls.Go(func() {
			response := call(i * 7919)
			if response.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit() == 10 {
				reloadTime.CompareAndSwap(0, time.Since(begin).Microseconds())
			}
			mu.Lock()
			defer mu.Unlock()
			step := sendTime.Sub(begin) / latencyStep
			steps[step] = append(steps[step], time.Since(sendTime))
		})
	}
	calls.Wait()
	logMemory("after calls and a reload")
	var p99s []time.Duration
	for _, times := range steps {
		slices.Sort(times)
		p99s = append(p99s, times[len(times)*99/100])
	}
	p99sBefore := slices.Clone(p99s[2 : timeBeforeChange/latencyStep])
	slices.Sort(p99sBefore)
	t.Logf("p99 of %s: before the reload median %s, maximum %s; since then maximum %s; reload took %s",
		latencyStep, p99sBefore[len(p99sBefore)/2], p99sBefore[len(p99sBefore)-1], slices.Max(p99s[timeBeforeChange/latencyStep:]), time.Duration(reloadTime.Load()-changeTime.Load())*time.Microsecond)
	t.Log(p99s)
	var callers sync.WaitGroup
	for firstRule := range 64 {
		callers.Go(func() {
			for i := firstRule; i < 2*manyRules && call(i) != nil; i += 64 {
			}
		})
	}
	callers.Wait()
	logMemory("after two calls for each rule")
}

// writeManyRules writes a limits file of manyRules rules.
func writeManyRules(t *testing.T, path string, requests int) {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range manyRules {
		fmt.Fprintf(&b, "  - key: k\n    value: v%d\n    rate_limit:\n      unit: day\n      requests_per_unit: %d\n", i, requests)
	}
	require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o644))
}

// procStatus returns a size in /proc/PID/status, in megabytes.
func procStatus(t *testing.T, pid int, name string) float64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	match := regexp.MustCompile(name + `:\s+(\d+) kB`).FindSubmatch(status)
	require.NotNil(t, match)
	kilobytes, err := strconv.ParseFloat(string(match[1]), 64)
	require.NoError(t, err)
	return kilobytes / 1000
}

package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// priceRun is processes that share a Redis and a limit, and the answers that their callers got.
type priceRun struct {
	t         *testing.T
	limit     int64
	processes []*process

	admitted, calls atomic.Int64
}

func newPriceRun(t *testing.T, limit int64, replicas int, settings ...string) *priceRun {
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	text := fmt.Sprintf("domain: d\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: %d}}]\n", limit)
	require.NoError(t, os.WriteFile(limits, []byte(text), 0o600))
	settings = append(settings, "LIMITS_PATH="+limits, fmt.Sprintf("REDIS_FALLBACK_RATIO=%v", ratio))
	r := &priceRun{t: t, limit: limit}
	for range replicas {
		r.processes = append(r.processes, startProcess(t, settings...))
	}
	return r
}

// call sends a hit to a process.
func (r *priceRun) call(p *process) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	response, err := p.client.ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "k", Value: "v"}}},
	}})
	if !assert.NoError(r.t, err) {
		return
	}
	r.calls.Add(1)
	if response.OverallCode == rlsv3.RateLimitResponse_OK {
		r.admitted.Add(1)
	}
}

// callWhile sends hits from callers of each process while f runs. Callers pause after each call.
func (r *priceRun) callWhile(callers int, pause time.Duration, f func()) {
	done := make(chan struct{})
	var goroutines sync.WaitGroup
	for _, p := range r.processes {
		for range callers {
			goroutines.Go(func() {
				for {
					r.call(p)
					select {
					case <-done:
						return
					case <-time.After(pause):
					}
				}
			})
		}
	}
	f()
	close(done)
	goroutines.Wait()
}

// callInTurn sends n hits to the first process, one after the other.
func (r *priceRun) callInTurn(n int) {
	for range n {
		r.call(r.processes[0])
	}
}

// sum returns the sum of a metric over all processes.
func (r *priceRun) sum(name, label string) (sum int64) {
	for _, p := range r.processes {
		sum += int64(sumOf(p.metrics(), name, label))
	}
	return sum
}

// decisionsWithoutRedis returns the decisions without Redis for a reason, or for any reason if it is empty.
func (r *priceRun) decisionsWithoutRedis(reason string) int64 {
	label := ""
	if reason != "" {
		label = fmt.Sprintf("reason=%q", reason)
	}
	return r.sum("rls_decisions_without_redis_total", label)
}

// prices is the table of what faults cost processes. Each fault checks what its row promises, and
// returns a note for the last column.
var prices = []struct {
	name     string
	limit    int64
	replicas int
	bound    int64 // of the admitted hits
	run      func(t *testing.T, newRun func(settings ...string) *priceRun) (r *priceRun, note string)
}{
	{"room for one hit in the queue (`REDIS_MAX_QUEUE_SIZE=1`), 8 callers", 1000, 1, 1500, runFullQueue},
	{"no Redis replica confirms (`REDIS_WAIT_REPLICAS=1`)", 200, 1, 200, runUnconfirmedWrites},
	{"60 stalls of 60 ms (SIGSTOP)", tightMax, 3, tightMax + 3*localShare, runStallsBySignal},
	{"60 stalls of 60 ms (network)", tightMax, 3, tightMax + 3*localShare, runStallsByNetwork},
	{"Redis killed when it has counted 200 hits", tightMax, 1, 200 + (tightMax-200)*ratio, runKillAfterCount},
	{"counter deleted by `redis-cli DEL`, after its limit was spent", tightMax, 1, tightMax, runCounterDeletion},
}

// maxStallExcess bounds the hits that three processes admit beyond a limit in many short stalls. An
// outage may cost three shares, but stalls must cost far less.
const maxStallExcess = 60

const priceHeader = "\n| fault | replicas | calls | admitted | limit | bound | most beyond the limit, by the metrics | decided here | seen in |\n|---|---|---|---|---|---|---|---|---|"

func TestPricesAreWithinBounds(t *testing.T) {
	if *isFullRun {
		fmt.Println(priceHeader)
	}
	for _, row := range prices {
		t.Run(row.name, func(t *testing.T) {
			r, note := row.run(t, func(settings ...string) *priceRun { return newPriceRun(t, row.limit, row.replicas, settings...) })
			admitted, excess := r.admitted.Load(), r.sum("rls_max_excess_hits", "")
			assert.LessOrEqual(t, admitted, row.bound)
			assert.LessOrEqual(t, admitted, row.limit+excess, "the metrics know each hit beyond the limit")
			text := fmt.Sprintf("| %s | %d | %d | %d | %d | %d | %d | %d | %s |",
				row.name, row.replicas, r.calls.Load(), admitted, row.limit, row.bound, excess, r.decisionsWithoutRedis(""), note)
			if *isFullRun {
				fmt.Println(text)
			} else {
				t.Log(text)
			}
		})
	}
}

func runFullQueue(t *testing.T, newRun func(...string) *priceRun) (*priceRun, string) {
	run := newRun("REDIS_URL="+redistest.Start(t).Addr, "REDIS_MAX_QUEUE_SIZE=1")
	run.callWhile(8, 0, func() { time.Sleep(shortUnlessFull(3 * time.Second)) })
	overloads := run.decisionsWithoutRedis("overload")
	assert.Positive(t, overloads)
	return run, fmt.Sprintf("%d decisions with the reason `overload`", overloads)
}

// runUnconfirmedWrites has a Redis without replicas.
func runUnconfirmedWrites(t *testing.T, newRun func(...string) *priceRun) (*priceRun, string) {
	run := newRun("REDIS_URL="+redistest.Start(t).Addr, "REDIS_WAIT_REPLICAS=1")
	run.callWhile(8, 0, func() {
		polltest.Until(t, 30*time.Second, func() bool { return run.calls.Load() >= 400 })
	})
	batches := run.sum("rls_redis_unconfirmed_batches_total", "")
	assert.Positive(t, batches)
	assert.Contains(t, run.processes[0].log(), "REDIS_WAIT_REPLICAS")
	return run, fmt.Sprintf("%d unconfirmed batches", batches)
}

func runStallsBySignal(t *testing.T, newRun func(...string) *priceRun) (*priceRun, string) {
	server := redistest.Start(t)
	return runStalls(t, newRun("REDIS_URL="+server.Addr), server.Pause, server.Resume)
}

func runStallsByNetwork(t *testing.T, newRun func(...string) *priceRun) (*priceRun, string) {
	proxy := startProxy(t, "127.0.0.1:0", redistest.Start(t).Addr)
	return runStalls(t, newRun("REDIS_URL="+proxy.Listen), func() { proxy.addToxic("latency", 1, `"latency": 60`) }, proxy.removeToxics)
}

func runStalls(t *testing.T, run *priceRun, begin, end func()) (*priceRun, string) {
	const stallTime, pause = 60 * time.Millisecond, 60 * time.Millisecond
	stallCount := 60
	if !*isFullRun {
		stallCount = 15
	}
	run.callWhile(4, 10*time.Millisecond, func() {
		for range stallCount {
			time.Sleep(pause)
			begin()
			time.Sleep(stallTime)
			end()
		}
	})
	lateDecisions := run.decisionsWithoutRedis("late")
	assert.Positive(t, lateDecisions)
	assert.LessOrEqual(t, run.admitted.Load(), run.limit+maxStallExcess)
	return run, fmt.Sprintf("%d decisions with the reason `late`", lateDecisions)
}

// runKillAfterCount kills Redis after 200 hits. The fallback starts from this count.
func runKillAfterCount(t *testing.T, newRun func(...string) *priceRun) (*priceRun, string) {
	server := redistest.Start(t)
	run := newRun("REDIS_URL=" + server.Addr)
	run.callInTurn(200)
	server.Kill()
	run.callInTurn(200)
	polltest.Until(t, 30*time.Second, func() bool { run.callInTurn(1); return run.sum("rls_redis_state_changes_total", "down") == 1 }, "an outage")
	return run, "1 outage"
}

var remainingInRedis = regexp.MustCompile(`spent: 0 of \d+, (\d+) left`)

// runCounterDeletion deletes a spent counter behind the back of a process.
func runCounterDeletion(t *testing.T, newRun func(...string) *priceRun) (*priceRun, string) {
	server := redistest.Start(t)
	run := newRun("REDIS_URL="+server.Addr, "ADMIN_TOKEN=price")
	t.Setenv("ADMIN_TOKEN", "price")
	run.callInTurn(tightMax + 1)
	c, ctx := server.Client(t), context.Background()
	counters := c.Keys(ctx, "*:d|k=v@*").Val()
	require.Len(t, counters, 1)
	command(t, c, "DEL", counters[0])
	run.callInTurn(300)
	out := run.processes[0].command("explain", "-d", "d", "k=v")
	m := remainingInRedis.FindStringSubmatch(out)
	require.NotNil(t, m, out)
	assert.Contains(t, out, "answered by the deny cache of this replica")
	return run, "`rls explain`: " + m[1] + " left, and the deny cache of this replica answers"
}

//go:build redis

package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

const waiterLimits = `
domain: bench
descriptors:
  - key: fixed_window
    rate_limit: {unit: second, requests_per_unit: 100}
  - key: sliding_log
    rate_limit: {unit: second, requests_per_unit: 100, algorithm: sliding_log}
  - key: token_bucket
    rate_limit: {unit: second, requests_per_unit: 100, algorithm: token_bucket}
`

// TestClient lets three processes acquire 1,000 permits of 100 a second, from two replicas with
// one Redis. It prints a table for docs/lab/costs.md.
func TestClient(t *testing.T) {
	const processes, permits, perSecond = 3, 1000, 100
	path := filepath.Join(t.TempDir(), "limits.yaml")
	require.NoError(t, os.WriteFile(path, []byte(waiterLimits), 0o644))
	redis := redistest.Start(t)
	var replicas []string
	for range 2 {
		_, addr := startProgram(t, os.Getenv(programEnv), "REDIS_URL="+redis.Addr, "REDIS_TIMEOUT=1s", "LIMITS_PATH="+path, "LOG_LEVEL=error")
		replicas = append(replicas, addr)
	}
	table := new(strings.Builder)
	fmt.Fprintln(table, "| algorithm | time for 1,000 permits | permits of each process | most permits in a second | callers that got their permit after a later caller of their process |\n|---|---|---|---|---|")
	for _, algorithm := range []string{"fixed_window", "sliding_log", "token_bucket"} {
		begin := time.Now().Truncate(time.Second).Add(2 * time.Second)
		var times [processes][]int64
		var cmds [processes]*exec.Cmd
		var outputs [processes]bytes.Buffer
		for p := range processes {
			callers := permits / processes
			if p == 0 {
				callers += permits % processes
			}
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s=x %d", waitersEnv, replicas[p%len(replicas)], algorithm, callers))
			cmd.Stdin = strings.NewReader(fmt.Sprint(begin.UnixMicro()))
			cmd.Stdout, cmd.Stderr = &outputs[p], os.Stderr
			require.NoError(t, cmd.Start())
			cmds[p] = cmd
		}
		var allTimes []int64
		var counts []string
		overtakenCount := 0
		for p, cmd := range cmds {
			require.NoError(t, cmd.Wait())
			require.NoError(t, json.Unmarshal(outputs[p].Bytes(), &times[p]))
			allTimes = append(allTimes, times[p]...)
			counts = append(counts, fmt.Sprint(len(times[p])))
			overtakenCount += overtakenCallers(times[p])
		}
		slices.Sort(allTimes)
		duration := time.Duration(allTimes[permits-1]-begin.UnixMicro()) * time.Microsecond
		maxPermits := mostInSecond(allTimes, algorithm == "fixed_window")
		fmt.Fprintf(table, "| `%s` | %.2f s | %s | %d | %d |\n", algorithm, duration.Seconds(), strings.Join(counts, ", "), maxPermits, overtakenCount)
		assert.GreaterOrEqual(t, duration, 9*time.Second, algorithm)
		assert.LessOrEqual(t, duration, 11*time.Second, algorithm)
		assert.Zero(t, overtakenCount, algorithm)
		if algorithm != "token_bucket" { // a bucket admits up to its burst besides its rate
			assert.LessOrEqual(t, maxPermits, perSecond, algorithm)
		}
	}
	fmt.Println(table)
}

// observationError is the most by which the time of a permit in its process can differ from the
// time of its charge.
const observationError = 20_000 // microseconds

// overtakenCallers returns the number of callers that had their permit after a caller that came
// later. Callers that share a call of the service wake up in any order.
func overtakenCallers(times []int64) int {
	n := 0
	earliestLater := int64(1 << 62)
	for i := len(times) - 1; i >= 0; i-- {
		if times[i] > earliestLater+observationError {
			n++
		}
		earliestLater = min(earliestLater, times[i])
	}
	return n
}

// mostInSecond returns the most permits of a second. The second starts at a whole second of the
// clock if isAligned, and else at any permit.
func mostInSecond(times []int64, isAligned bool) int {
	const second = 1_000_000
	maxPermits := 0
	for i, firstTime := range times {
		end := firstTime + second - observationError
		if isAligned {
			end = firstTime - firstTime%second + second
		}
		n, _ := slices.BinarySearch(times[i:], end)
		maxPermits = max(maxPermits, n)
	}
	return maxPermits
}

package faults

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

const distanceHeader = "\n| `REDIS_TIMEOUT` | round trip, by the metrics | budget, by the metrics | calls | decided by Redis | warning at the start |\n|---|---|---|---|---|---|"

var timeoutWarning = regexp.MustCompile(`(round trip [\d.]+ms, budget [\d.]+ms: too small, so calls are decided without Redis)" advice="(set REDIS_TIMEOUT to \d+ms or more[^;]*)`)

// A Redis at 36 ms needs a longer budget than the default. The process says so, and with auto it takes one.
func TestDistantRedisNeedsBudget(t *testing.T) {
	if *isFullRun {
		fmt.Println(distanceHeader)
	}
	for _, timeout := range []string{"50ms", "auto"} {
		t.Run(timeout, func(t *testing.T) {
			proxy := startProxy(t, "127.0.0.1:0", redistest.Start(t).Addr)
			proxy.addToxic("latency", 1, `"latency": 18`)
			run := newPriceRun(t, 1<<31, 1, "REDIS_URL="+proxy.Listen, "REDIS_TIMEOUT="+timeout)
			budgetNow := func() time.Duration {
				return time.Duration(float64(time.Second) * sumOf(run.processes[0].metrics(), "rls_redis_timeout_seconds", ""))
			}
			warning := "none"
			if timeout == "auto" {
				polltest.Until(t, 30*time.Second, func() bool { run.callInTurn(1); return budgetNow() > 2*budget }, "a longer budget")
				assert.NotRegexp(t, timeoutWarning, run.processes[0].log())
			} else {
				polltest.Until(t, 30*time.Second, func() bool { return timeoutWarning.MatchString(run.processes[0].log()) }, "a warning")
				m := timeoutWarning.FindStringSubmatch(run.processes[0].log())
				warning = fmt.Sprintf("`%s`; `%s`", m[1], m[2])
				require.Equal(t, budget, budgetNow())
			}
			callsBefore, localDecisionsBefore := run.calls.Load(), run.decisionsWithoutRedis("")
			run.callWhile(8, 3*time.Millisecond, func() { time.Sleep(shortUnlessFull(3 * time.Second)) })
			calls, localDecisions := run.calls.Load()-callsBefore, run.decisionsWithoutRedis("")-localDecisionsBefore
			byRedis := float64(calls-localDecisions) / float64(calls)
			roundTrip := time.Duration(float64(time.Second) * sumOf(run.processes[0].metrics(), "rls_redis_round_trip_seconds", ""))
			assert.GreaterOrEqual(t, roundTrip, 36*time.Millisecond)
			row := fmt.Sprintf("| `%s` | %s | %s | %d | %.1f %% | %s |", timeout, ms(roundTrip), ms(budgetNow()), calls, 100*byRedis, warning)
			if *isFullRun {
				fmt.Println(row)
			} else {
				t.Log(row)
			}
			if timeout == "auto" {
				assert.Greater(t, byRedis, 0.5)
				proxy.removeToxics()
				polltest.Until(t, 60*time.Second, func() bool { run.callInTurn(1); return budgetNow() == budget }, "the default budget")
			}
		})
	}
}

package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

const stepsHeader = "\n| round trip with `REDIS_TIMEOUT=auto` | until Redis decides all calls | budget then |\n|---|---|---|"

// maxStepTime is the promise of docs/redis.md for the time from a step until Redis decides all calls.
const maxStepTime = 5 * time.Second

// A failover can move Redis into another zone. With REDIS_TIMEOUT=auto, the budget follows the round
// trip, although the breaker is open and no call reaches Redis.
func TestAutoTimeoutFollowsStepsOfDistantRoundTrip(t *testing.T) {
	if *isFullRun {
		fmt.Println(stepsHeader)
	}
	nearRedis, farRedis := redistest.Start(t), redistest.Start(t)
	proxy := startProxy(t, "127.0.0.1:0", nearRedis.Addr)
	run := newPriceRun(t, 1<<31, 1, "REDIS_URL="+proxy.Listen, "REDIS_TIMEOUT=auto")
	budgetNow := func() time.Duration {
		return time.Duration(float64(time.Second) * sumOf(run.processes[0].metrics(), "rls_redis_timeout_seconds", ""))
	}
	for _, step := range []struct {
		name      string
		server    *redistest.Server
		oneWay    time.Duration
		minBudget time.Duration
	}{
		{"0 ms", nearRedis, 0, budget},
		{"0 → 60 ms", nearRedis, 30 * time.Millisecond, 180 * time.Millisecond},
		{"60 → 0 ms", nearRedis, 0, budget},
		{"0 → 60 ms, on another server that cuts all connections", farRedis, 30 * time.Millisecond, 180 * time.Millisecond},
		{"60 → 120 ms", farRedis, 60 * time.Millisecond, 360 * time.Millisecond},
		{"120 → 0 ms, on the first server", nearRedis, 0, budget},
		{"0 → 30 ms", nearRedis, 15 * time.Millisecond, 90 * time.Millisecond},
	} {
		proxy.removeToxics()
		if step.server.Addr != proxy.Upstream {
			proxy.Stop()
			proxy.Upstream = step.server.Addr
			require.NoError(t, proxy.Start())
		}
		proxy.addToxic("latency", 1, fmt.Sprintf(`"latency": %d`, step.oneWay.Milliseconds()))
		start := time.Now()
		run.callWhile(8, 3*time.Millisecond, func() {
			polltest.Until(t, 60*time.Second, func() bool {
				callsBefore, localDecisionsBefore := run.calls.Load(), run.decisionsWithoutRedis("")
				time.Sleep(300 * time.Millisecond)
				b := budgetNow()
				return b >= step.minBudget && b <= step.minBudget*3/2 && run.calls.Load() > callsBefore && run.decisionsWithoutRedis("") == localDecisionsBefore
			}, step.name+": Redis decides all calls, and the budget fits")
		})
		duration := time.Since(start)
		row := fmt.Sprintf("| %s | %.1f s | %s |", step.name, duration.Seconds(), ms(budgetNow()))
		if *isFullRun {
			fmt.Println(row)
			assert.Less(t, duration, maxStepTime)
		} else {
			t.Log(row)
		}
	}
}

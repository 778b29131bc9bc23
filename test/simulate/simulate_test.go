package simulate

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	seeds    = flag.String("seeds", "1-40", "seeds to run, such as 7 or 1-1000")
	schedule = flag.String("schedule", "", "name of a schedule to run in place of the random schedule of the seed")
	tracing  = flag.String("trace", "", "file for the trace of the last seed")
)

var program = sync.OnceValues(func() (*Program, error) { return Compile(context.Background()) })

func compileProgram(t *testing.T) *Program {
	p, err := program()
	require.NoError(t, err)
	return p
}

// parseSeeds returns the first and the last seed of a range.
func parseSeeds(t *testing.T, text string) (firstSeed, lastSeed uint64) {
	low, high, isRange := strings.Cut(text, "-")
	firstSeed, err := strconv.ParseUint(low, 10, 64)
	require.NoError(t, err)
	if !isRange {
		return firstSeed, firstSeed
	}
	lastSeed, err = strconv.ParseUint(high, 10, 64)
	require.NoError(t, err)
	return firstSeed, lastSeed
}

func TestNoSeedBreaksAnInvariant(t *testing.T) {
	firstSeed, lastSeed := parseSeeds(t, *seeds)
	var runs []scheduledRun
	for seed := firstSeed; seed <= lastSeed; seed++ {
		runs = append(runs, scheduledRun{seed, *schedule})
	}
	runAll(t, runs)
	fmt.Printf("%d seeds\n", lastSeed-firstSeed+1)
}

func TestNoSeedOfRegionsBreaksAnInvariant(t *testing.T) {
	var runs []scheduledRun
	for seed := range uint64(20) {
		runs = append(runs, scheduledRun{seed + 1, "regions"})
	}
	runAll(t, runs)
}

type scheduledRun struct {
	seed     uint64
	schedule string
}

// runAll checks that no run breaks an invariant. The option -trace keeps the trace of the last run.
func runAll(t *testing.T, runs []scheduledRun) {
	program := compileProgram(t)
	nextRuns := make(chan scheduledRun)
	var goroutines sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		goroutines.Go(func() {
			for r := range nextRuns {
				run, err := program.Run(t.Context(), r.seed, r.schedule)
				if err != nil || len(run.Problems) > 0 {
					t.Errorf("seed %d, schedule %q: %v\n%s\nschedule:\n%s\nreplay: make simulate SEEDS=%d SCHEDULE=%s TRACE=/tmp/trace",
						r.seed, r.schedule, err, strings.Join(firstOf(run.Problems, 10), "\n"), head(run.Trace), r.seed, r.schedule)
				}
				if r == runs[len(runs)-1] && *tracing != "" {
					assert.NoError(t, os.WriteFile(*tracing, run.Trace, 0o600))
				}
			}
		})
	}
	for _, r := range runs {
		nextRuns <- r
	}
	close(nextRuns)
	goroutines.Wait()
}

// firstOf returns at most n lines.
func firstOf(lines []string, n int) []string {
	if len(lines) > n {
		return append(lines[:n:n], fmt.Sprintf("and %d more", len(lines)-n))
	}
	return lines
}

// head returns the schedule: the lines before the first event. The line of an event starts with a blank and a time.
func head(trace []byte) string {
	var b strings.Builder
	for line := range bytes.Lines(trace) {
		if line[0] == ' ' {
			break
		}
		b.Write(line)
	}
	return b.String()
}

// schedules are the named schedules.
var schedules = []string{
	"acquires", "acquires-two-redis", "anonymous-holders", "busy-callers", "canceled-calls", "deleted-counter", "far-redis", "full-queue", "full-queue-far-away", "groups-on-one-counter",
	"holders", "holders-long-network-cut", "idle-permits", "killed-replicas",
	"late-answers", "late-answers-all-or-none", "late-denials", "late-permits", "late-refunds", "late-return", "long-network-cut", "lowered-rate",
	"lost-permits", "lost-returns", "missing-replicas", "no-cpu-time", "raised-rate", "refunds", "refunds-elsewhere", "short-windows",
}

// regionSchedules are the named schedules with regions.
var regionSchedules = []string{
	"bucket", "bucket-burst", "close-clocks", "clocks", "cut", "global-empty", "groups", "idle-wakes", "killed-buyers", "late-orders", "lost-answers", "lost-orders", "lost-writes",
	"lowered-limit", "moving-demand", "one-busy", "raised-limit", "redis-empty", "refunds", "reset", "script-flushes", "short-windows", "slow", "stalls", "years",
}

func TestNoNamedScheduleBreaksAnInvariant(t *testing.T) {
	var runs []scheduledRun
	for _, name := range schedules {
		runs = append(runs, scheduledRun{1, name})
	}
	for _, name := range regionSchedules {
		runs = append(runs, scheduledRun{1, "regions-" + name})
	}
	runAll(t, runs)
}

func TestSeedReplaysExactly(t *testing.T) {
	program := compileProgram(t)
	for _, seed := range []uint64{1, 2, 3} {
		firstRun, err := program.Run(t.Context(), seed, "")
		require.NoError(t, err)
		for range 2 {
			secondRun, err := program.Run(t.Context(), seed, "")
			require.NoError(t, err)
			assert.Equal(t, firstRun.Hash, secondRun.Hash, "seed %d", seed)
		}
	}
}

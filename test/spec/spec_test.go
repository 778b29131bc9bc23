package spec

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, redistest.IgnoreShared()...) }

const (
	tracesByDefault = 10_000
	tracesOfRace    = 1_000 // with the race detector

	// tracesPerStack is the number of traces that use one stack, one after the other, each with a
	// domain of its own.
	tracesPerStack = 250

	// tracesPerRound is the number of traces after which all keys are deleted.
	tracesPerRound = 100_000

	// workers run at once. They mostly wait for Redis.
	workers = 4
)

// number returns the number in an environment variable.
func number(t *testing.T, name string) (n uint64, ok bool) {
	text := os.Getenv(name)
	if text == "" {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: got %q, want a number", name, text)
	}
	return n, true
}

// TRACES is the number of traces, and FIRST the seed of the first trace. SEED repeats a single trace.
func TestServiceAnswersAsTheReference(t *testing.T) {
	redis.LogTo(slog.New(slog.DiscardHandler))
	servers, allRows := startServers(t), rows()
	if seed, ok := number(t, "SEED"); ok {
		report(t, servers, newTrace(seed, allRows), nil)
		return
	}
	traces := uint64(tracesByDefault)
	if raceEnabled {
		traces = tracesOfRace
	}
	if n, ok := number(t, "TRACES"); ok {
		traces = n
	}
	firstSeed, _ := number(t, "FIRST")
	startTime := time.Now()
	defer func() {
		decisionCounts.Range(func(key, n any) bool {
			t.Logf("%7d decisions by %s", n.(*atomic.Int64).Load(), key)
			return true
		})
	}()
	for done := uint64(0); done < traces && !t.Failed(); {
		n := min(tracesPerRound, traces-done)
		runSeeds(t, servers, allRows, firstSeed+done, firstSeed+done+n)
		servers.clear(t)
		done += n
		if traces > tracesByDefault {
			fmt.Printf("%d of %d traces, %s\n", done, traces, time.Since(startTime).Round(time.Second))
		}
	}
}

// runSeeds runs the traces with these seeds.
func runSeeds(t *testing.T, servers *servers, allRows []row, from, to uint64) {
	jobs := make(chan []uint64) // seeds of one row
	go func() {
		defer close(jobs)
		step := uint64(len(allRows) * tracesPerStack)
		for start := from; start < to; start += step {
			for r := range uint64(len(allRows)) {
				var seeds []uint64
				for seed := start + r; seed < min(start+step, to); seed += uint64(len(allRows)) {
					seeds = append(seeds, seed)
				}
				if len(seeds) > 0 {
					jobs <- seeds
				}
			}
		}
	}()
	var failures atomic.Int64
	var goroutines sync.WaitGroup
	for range workers {
		goroutines.Go(func() {
			for seeds := range jobs {
				if failures.Load() >= maxFailures {
					continue
				}
				firstTrace := newTrace(seeds[0], allRows)
				stack := newStack(t, &firstTrace.settings, servers)
				for _, seed := range seeds {
					trace := newTrace(seed, allRows)
					if problems := run(t, trace, stack); problems != nil && failures.Add(1) <= maxFailures {
						report(t, servers, trace, problems)
					}
				}
				stack.close()
			}
		})
	}
	goroutines.Wait()
}

// maxFailures is the number of failures that are reported.
const maxFailures = 5

// maxTries is how often a trace is repeated to see its failure again. Calls at once differ each time.
const maxTries = 20

// report runs a trace that has failed, with a new stack, and reports the shortest trace that fails.
func report(t *testing.T, servers *servers, failed *trace, firstProblems []string) {
	findProblems := func(candidate *trace) (problems []string) {
		for range maxTries {
			stack := newStack(t, &candidate.settings, servers)
			problems = run(t, candidate, stack)
			stack.close()
			if problems != nil || !candidate.settings.hasCallsAtOnce && !candidate.settings.leases {
				break
			}
		}
		return problems
	}
	problems := findProblems(failed)
	if problems == nil {
		if firstProblems != nil {
			t.Errorf("seed %d failed once, but does not fail again; repeat with SEED=%d\n%s%s", failed.seed, failed.seed, failed, lines(firstProblems))
		}
		return
	}
	shortestTrace, problems := shrink(failed, problems, findProblems)
	t.Errorf("repeat with SEED=%d\n%s%s", failed.seed, shortestTrace, lines(problems))
}

func lines(problems []string) (text string) {
	for _, p := range problems {
		text += "  " + p + "\n"
	}
	return text
}

// shrink removes steps and descriptors from a trace as long as it fails.
func shrink(t *trace, problems []string, findProblems func(*trace) []string) (*trace, []string) {
	try := func(candidate trace) bool {
		if p := findProblems(&candidate); p != nil {
			t, problems = &candidate, p
			return true
		}
		return false
	}
	for isShorter := true; isShorter; {
		isShorter = false
		for i := len(t.steps) - 1; i >= 0; i-- {
			candidate := *t
			candidate.steps = slices.Delete(slices.Clone(t.steps), i, i+1)
			isShorter = try(candidate) || isShorter
		}
		for i := 0; i < len(t.steps); i++ {
			for j := 0; t.steps[i].request != nil && len(t.steps[i].request.descriptors) > 1 && j < len(t.steps[i].request.descriptors); j++ {
				candidate := *t
				candidate.steps = slices.Clone(t.steps)
				shorterRequest := *t.steps[i].request
				shorterRequest.descriptors = slices.Delete(slices.Clone(shorterRequest.descriptors), j, j+1)
				candidate.steps[i].request = &shorterRequest
				isShorter = try(candidate) || isShorter
			}
		}
	}
	return t, problems
}

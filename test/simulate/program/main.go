// Command program simulates replicas of rls, their callers, a network and a Redis, and breaks
// them by a schedule. It is built for WebAssembly, and package simulate gives it its clock and
// its random numbers. So the whole process is a function of the seed.
//
// The replicas are the packages of rls, wired as cmd/rls wires them. The program writes its
// schedule and all events to its output. Broken promises go to the error output.
package main

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/seed-81f232ab/rls/backend/redis"
)

func main() {
	redis.LogTo(slog.New(slog.DiscardHandler)) // the error output is for problems
	seed, err := strconv.ParseUint(os.Args[1], 10, 64)
	if err != nil {
		fmt.Fprintln(os.Stderr, "seed:", err)
		os.Exit(2)
	}
	if len(os.Args) > 2 && regionPlans[os.Args[2]] != nil {
		p := regionPlans[os.Args[2]](seed)
		p.print()
		exitWith(simulateRegions(p))
	}
	p := newPlan(seed)
	if len(os.Args) > 2 {
		newPlan := namedPlans[os.Args[2]]
		if newPlan == nil {
			fmt.Fprintf(os.Stderr, "schedule: got %q, want one of %q\n", os.Args[2], slices.Concat(slices.Sorted(maps.Keys(namedPlans)), slices.Sorted(maps.Keys(regionPlans))))
			os.Exit(2)
		}
		p = newPlan()
		p.seed = seed
	}
	p.print()
	exitWith(simulate(p))
}

// exitWith ends the program with the broken promises.
func exitWith(problems []string) {
	for _, problem := range problems {
		logf("PROBLEM %s", problem)
	}
	flush()
	for _, problem := range problems {
		fmt.Fprintln(os.Stderr, problem)
	}
	if len(problems) > 0 {
		os.Exit(1)
	}
	os.Exit(0)
}

// settleTime is the time after the last fault in which everything must recover. Blips have a
// report every ten seconds.
const settleTime = 15 * time.Second

// simulate runs a plan, and returns the broken promises.
func simulate(p *plan) []string {
	f := newFleet(p)
	callers := startCallers(f)
	for _, e := range p.events {
		sleepUntil(e.at)
		logf("%s", e.text)
		e.run(f)
	}
	sleepUntil(p.duration)
	callers.stop()
	f.heal()
	logf("faults ended")
	time.Sleep(settleTime)
	f.checkRecovery()
	c := newChecks(f)
	f.close()
	time.Sleep(settleTime)
	c.checkLeases()
	c.checkCharges()
	if n := runtime.NumGoroutine(); n > f.firstGoroutines {
		c.fail("goroutines: got %d after the end, want %d", n, f.firstGoroutines)
	}
	return c.problems
}
